"""Typical acceptance: draft tokens are accepted where the target finds them likely enough. Lossy."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dflash.decode.drafting.draft import Draft
from dflash.decode.verifiers.base import Guarantee, Probs, Stateless, Taken, TargetPath
from dflash.errors import RequestError


@dataclass(frozen=True)
class Typical(Stateless):
    """Accept a draft token x if ``p(x) > min(epsilon, delta * exp(-H(p)))``, H being the entropy. Lossy.

    The output has another distribution than the target's: tokens that a drafter proposes come more often. At temperature 0
    it is that of plain decoding. Of several draft tokens at one place of a tree, the first that is likely enough is taken.

    Parameters
    ----------
    epsilon : float
        Probability that always suffices; above 0, at most 1.
    delta : float
        Share of the typical probability ``exp(-H)`` that suffices; above 0, at most 1.

    Raises
    ------
    RequestError
        If a value is out of range.

    References
    ----------
    Cai et al. 2024, Medusa, arXiv 2401.10774, with its defaults.
    """

    epsilon: float = 0.09
    delta: float = 0.3

    guarantee: ClassVar[Guarantee] = "lossy"
    draws: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("epsilon", "delta"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
                raise RequestError(f"Typical: {name} must be above 0 and at most 1, got {value!r:.40}")

    @property
    def warning(self) -> str:
        """See `Verifier`."""
        return f"{self!r} is lossy: the output does not have the target's distribution"

    def take(self, draft: Draft, target: TargetPath) -> Taken:
        """See `VerifierState`."""
        taken: list[int] = []
        node, goes_on = -1, True
        while goes_on and (children := draft.children(node)):
            p = target.p(node + 1)
            least = min(self.epsilon, self.delta * float(np.exp(-_entropy(p))))
            node = next((child for child in children if p[draft.tokens[child]] > least), -1)
            if node < 0:
                break
            taken.append(int(draft.tokens[node]))
            goes_on = target.push(taken[-1], node + 1)
        return Taken(taken)


def _entropy(p: Probs) -> float:
    found = p[p > 0]
    return -float(found @ np.log(found))
