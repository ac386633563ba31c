"""The CPU time that the masks of one request may take in the engine's thread."""

from dflash.errors import RequestError
from dflash.generation.grammar.limits import FREE_MASK_SECONDS, MASK_SECONDS

_NEW = 0.25
"""Weight of the newest mask in the mean."""

_FIRST = 0.0025
"""CPU seconds that masks of a new request count for, as slow as free text in a large vocabulary: its first draft has ten."""


class MaskBudget:
    """CPU seconds of masks and moves beyond what each mask has free. The outputs of one request share it.

    Attributes
    ----------
    mean : float
        Mean CPU seconds of the masks, the newest ones above all.
    """

    __slots__ = ("_spent", "mean")

    def __init__(self) -> None:
        self._spent, self.mean = 0.0, _FIRST

    def charge_mask(self, seconds: float) -> None:
        """Count a mask."""
        self.mean += _NEW * (seconds - self.mean)
        self.charge(seconds - FREE_MASK_SECONDS)

    def charge(self, seconds: float) -> None:
        """Count other work.

        Raises
        ------
        RequestError
            If the budget is spent, now and ever after.
        """
        self._spent = max(0.0, self._spent + seconds)
        if self._spent > MASK_SECONDS:
            self._spent = float("inf")
            raise RequestError(
                f"grammar: masks take too long, {1e3 * self.mean:.0f} ms of CPU time each lately, "
                f"{1e3 * FREE_MASK_SECONDS:g} ms are allowed; use longer terminals and fewer ways to read the same text"
            )
