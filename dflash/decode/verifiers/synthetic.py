"""Synthetic acceptance: as many draft tokens are accepted as a given mean asks for."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from dflash.decode.drafting.draft import Draft
from dflash.decode.verifiers.base import Guarantee, Taken, TargetPath
from dflash.errors import RequestError

METHODS = ("match-expected", "multinomial")

_GOLDEN_RATIO = (math.sqrt(5) - 1) / 2
_BISECTIONS = 60


@dataclass(frozen=True)
class SyntheticAcceptance:
    """Accept a given number of draft tokens on average, whatever the target predicts.

    It measures the speed of a target with a draft model whose acceptance length is known, without that draft model. Drafts,
    forwards and commits are real, and accepted tokens are those of the draft. The text is meaningless.

    Parameters
    ----------
    length : float or sequence of float
        Mean acceptance length: tokens per step, at least 1, of which one is the target's own. Or for each position of a
        draft the share of steps in which it and all positions before it are accepted, from 1 to 0 and never rising.
    method : str
        How a mean becomes a number for each step. ``"match-expected"``: the whole number below the mean or the one above it.
        ``"multinomial"``: normally distributed around the mean with standard deviation 1, within the draft.
    source : str
        Where the length was measured.

    Raises
    ------
    RequestError
        If a value is out of range.

    Notes
    -----
    The n-th step of a sequence compares the shares with the fractional part of ``seed + n * 0.618...``, whose values are
    spread evenly: the mean of N steps differs from the expected one by less than about ``log(N) / N``. A draft that is
    shorter than what should be accepted is accepted as a whole. The two methods are those of SGLang
    (``SGLANG_SIMULATE_ACC_METHOD``).
    """

    length: float | tuple[float, ...]
    method: str = "match-expected"
    source: str = "assumed"

    guarantee: ClassVar[Guarantee] = "synthetic"
    draws: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check the values."""
        if self.method not in METHODS:
            raise RequestError(f"acceptance: method must be {' or '.join(METHODS)}, got {self.method!r:.80}")
        if isinstance(self.length, Sequence) and not isinstance(self.length, str):
            shares = tuple(map(_number, self.length))
            object.__setattr__(self, "length", shares)
            falls = all(high >= low for high, low in zip((1.0, *shares), (*shares, 0.0), strict=True))
            if not shares or not falls or self.method != METHODS[0]:
                raise RequestError(f"acceptance: shares of positions must fall from 1 to 0, got {list(shares)}")
        elif not 1 <= _number(self.length) < math.inf:
            raise RequestError(f"acceptance: a mean length is at least 1, the target's own token, got {self.length!r}")

    @property
    def warning(self) -> str:
        """See `Verifier`."""
        return f"{self}: the text is meaningless"

    def start(self, seed: int, *, greedy: bool = True) -> "AcceptanceSchedule":  # noqa: ARG002
        """Return the numbers of accepted draft tokens for a session."""
        return AcceptanceSchedule(self, seed)

    @property
    def mean(self) -> float:
        """Mean acceptance length of drafts that are long enough."""
        return 1 + sum(self.length) if isinstance(self.length, tuple) else self.length

    def shares(self, depth: int) -> Sequence[float]:
        """Return for each of `depth` draft positions the share of steps in which it is accepted."""
        if isinstance(self.length, tuple):
            return self.length[:depth]
        if self.method == "multinomial":
            return _normal_shares(self.length - 1, depth)
        n = int(self.length) - 1
        return ((1.0,) * n + (self.length - 1 - n,))[:depth]

    def __str__(self) -> str:
        length = ", ".join(f"{share:g}" for share in self.length) if isinstance(self.length, tuple) else f"{self.length:g}"
        return f"synthetic acceptance {length} ({self.source})"


class AcceptanceSchedule:
    """Numbers of draft tokens that the steps of one sequence accept.

    seed: sequences of different seeds accept different numbers in their first step.
    """

    draws = False

    def __init__(self, acceptance: SyntheticAcceptance, seed: int) -> None:
        self._acceptance = acceptance
        self._place = seed * math.sqrt(2) % 1

    def accepts(self, n: int) -> int:
        """Return how many tokens of a chain of `n` the next step accepts; see `VerifierState`."""
        return self._count(n, (self._place + _GOLDEN_RATIO) % 1)

    def take(self, draft: Draft, target: TargetPath | None = None) -> Taken:  # noqa: ARG002
        """Return the tokens of a draft that the next step accepts: of a tree, those above its first node at that depth."""
        depths = draft.depths
        self._place = (self._place + _GOLDEN_RATIO) % 1
        n = self._count(int(depths.max()), self._place)
        return Taken(draft.tokens[draft.path(int(np.argmax(depths == n)))].tolist() if n else [])

    def _count(self, depth: int, place: float) -> int:
        return sum(share > place for share in self._acceptance.shares(depth))


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RequestError(f"acceptance: wanted a number, got {value!r:.80}")
    return float(value)


@lru_cache(maxsize=256)
def _normal_shares(mean: float, depth: int) -> tuple[float, ...]:
    """Return shares of positions: a normal distribution of whole numbers from 0 to `depth`, moved until it has this mean."""
    if mean >= depth:
        return (1.0,) * depth
    numbers = np.arange(depth + 1)
    low, high = -10.0 * depth - 10, 11.0 * depth + 10
    for _ in range(_BISECTIONS):
        center = (low + high) / 2
        exponents = -((numbers - center) ** 2) / 2
        weights = np.exp(exponents - exponents.max())
        weights /= weights.sum()
        low, high = (center, high) if weights @ numbers < mean else (low, center)
    return tuple(weights[::-1].cumsum()[::-1][1:].tolist())
