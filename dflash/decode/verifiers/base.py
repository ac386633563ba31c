"""The protocol of a verifier, and `Coupled`, the default."""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from dflash.decode.drafting.draft import Draft

Probs = NDArray[np.float64]
"""A distribution over the whole vocabulary (V,)."""

Guarantee = Literal["same", "distribution", "lossy", "synthetic"]
"""The tokens of plain decoding; its distribution; another distribution; tokens without meaning."""


class Taken(NamedTuple):
    """Decision of a verifier about a draft.

    last: the token after them; None if the target samples it from its own distribution.
    """

    tokens: list[int]
    last: int | None = None


class TargetPath(Protocol):
    """The target's side of a draft, as a verifier sees it; it begins at the root."""

    def p(self, row: int) -> Probs:
        """Return the target's distribution after the tokens pushed so far, which end at the node of `row`.

        Penalties, bias, processors, grammar, temperature, top-k, top-p and min-p are applied. `row` is 0 for the root and
        ``1 + i`` below draft token i.
        """

    def q(self, index: int, p: Probs) -> Probs | None:
        """Return the distribution from which draft token `index` was sampled; None if the draft is to end above it.

        With a grammar, illegal draft tokens were removed. Then the distribution is limited to tokens that `p` allows, and
        a draft token outside of them ends the draft, as if it had been removed: neither changes the output's distribution.
        """

    def push(self, token: int, row: int) -> bool:
        """Append a draft token, whose row is `row`; return False if the sequence or the draft ends with it."""

    def uniform(self) -> float:
        """Return a number from 0 to 1, independent of all others and of the noise of drafts."""

    def sample(self, weights: Probs, depth: int) -> int | None:
        """Sample the token that follows `depth` draft tokens from weights of any sum; None if all of them are 0."""


class VerifierState(Protocol):
    """A verifier at work for one session, called by `verify`.

    A state that knows before a forward how many draft tokens the next `take` accepts also defines ``accepts(n)``, for a
    chain of `n` tokens. Its drafts may stay on a device, which drafts on below the accepted tokens. See `accepted_ahead`.
    """

    @property
    def draws(self) -> bool:
        """True if draft tokens are to be sampled from the drafter's distribution, in chains, with noise of their own."""

    def take(self, draft: Draft, target: TargetPath) -> Taken | None:
        """Decide about a draft of at least one token; None decides as `Coupled`."""


def accepted_ahead(verifier: VerifierState | None, draft: Draft) -> int | None:
    """Return how many tokens of a draft will be accepted whatever the target predicts; -1 if its sampled tokens decide.

    None if that is not known before the forward.
    """
    if verifier is None or not len(draft):
        return -1
    accepts = getattr(verifier, "accepts", None)
    return accepts(len(draft)) if accepts is not None and draft.without_forks else None


class Verifier(Protocol):
    """Decides which draft tokens are accepted. A frozen value without request state.

    Attributes
    ----------
    guarantee : str
        Relation of the output to that of plain decoding, at temperatures above 0.
    draws : bool
        See `VerifierState`. Drafts must be chains then.
    """

    @property
    def guarantee(self) -> Guarantee:
        """See the class."""

    @property
    def draws(self) -> bool:
        """See the class."""

    def start(self, seed: int, *, greedy: bool) -> VerifierState | None:
        """Return the state for a session; None if its tokens are those of plain decoding, as `Coupled` gives them."""

    @property
    def warning(self) -> str:
        """Sentence that goes with every output; empty if the output is lossless."""


@dataclass(frozen=True)
class Stateless:
    """Base of verifiers that are their own state."""

    def start(self, seed: int, *, greedy: bool) -> Self | None:  # noqa: ARG002
        """Return the verifier itself; None at temperature 0."""
        return None if greedy else self


@dataclass(frozen=True)
class Lossless(Stateless):
    """Base of verifiers that keep the target's distribution."""

    guarantee: ClassVar[Guarantee] = "distribution"
    draws: ClassVar[bool] = True
    warning: ClassVar[str] = ""


@dataclass(frozen=True)
class Coupled(Lossless):
    """Accept a draft token if the target samples the same one with the noise of its seed and position.

    The output is bit for bit that of plain decoding, whatever the draft. Drafters sample with the same noise, which makes
    equal tokens likely.

    References
    ----------
    Daliri, Musco, Suresh 2024, Coupling without Communication and Drafter-Invariant Speculative Decoding, arXiv 2408.07978.
    """

    guarantee: ClassVar[Guarantee] = "same"
    draws: ClassVar[bool] = False

    def start(self, seed: int, *, greedy: bool) -> None:
        """Return None."""


COUPLED = Coupled()
