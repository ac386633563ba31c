"""The CPU time that the masks of one request, and of all together, may take in the engine's thread."""

from math import inf
from time import monotonic

from dflash.errors import RequestError
from dflash.generation.grammar.limits import (
    FREE_MASK_SECONDS,
    LEAST_MASK_SECONDS,
    MASK_SECONDS,
    SHARED_MASK_REFILL,
    SHARED_MASK_SECONDS,
)

_NEW = 0.25
"""Weight of the newest mask in the mean."""

_FIRST = 0.0025
"""CPU seconds that masks of a new request count for, as slow as free text in a large vocabulary: its first draft has ten."""


class SharedMaskBudget:
    """CPU seconds of the masks of all requests beyond the free ones, of which some come back with time.

    One request can't stop the others for long, as `MaskBudget` sees to. With this, several at once can't either.
    """

    __slots__ = ("_at", "_spent")

    def __init__(self) -> None:
        self._spent, self._at = 0.0, monotonic()

    def charge(self, seconds: float) -> None:
        """Count work, or less than nothing for what a request gets back by fast masks."""
        now = monotonic()
        self._spent = max(0.0, self._spent - SHARED_MASK_REFILL * (now - self._at) + seconds)
        self._at = now

    @property
    def load(self) -> float:
        """Part of it that is spent; above 1 while the masks have taken too long."""
        self.charge(0.0)
        return self._spent / SHARED_MASK_SECONDS


class MaskBudget:
    """CPU seconds of masks and moves beyond what each mask has free. The outputs of one request share it.

    mean: mean CPU seconds of the masks, the newest ones above all.
    """

    __slots__ = ("_shared", "_spent", "mean")

    def __init__(self, shared: SharedMaskBudget) -> None:
        self._spent, self.mean, self._shared = 0.0, _FIRST, shared

    def charge_mask(self, seconds: float) -> None:
        """Count a mask."""
        self.mean += _NEW * (seconds - self.mean)
        self.charge(seconds - FREE_MASK_SECONDS)

    def charge(self, seconds: float) -> None:
        """Count other work."""
        before, self._spent = self._spent, max(0.0, self._spent + seconds)
        if before < inf:
            self._shared.charge(self._spent - before)
        if self._spent > MASK_SECONDS or (self._spent > LEAST_MASK_SECONDS and self._shared.load > 1):
            self._spent = inf
            raise RequestError(
                f"grammar: masks take too long, {1e3 * self.mean:.0f} ms of CPU time each lately, "
                f"{1e3 * FREE_MASK_SECONDS:g} ms are allowed; use longer terminals and fewer ways to read the same text"
            )
