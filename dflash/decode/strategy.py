"""A way of decoding, as a value."""

from dataclasses import dataclass, replace
from typing import Any

from dflash.decode.drafter import Drafter, Nothing
from dflash.errors import RequestError

_NOTHING = Nothing()


@dataclass(frozen=True, repr=False)
class Strategy:
    """Who guesses, in what shape, and what watches over it. Holds settings, no request; no strategy changes the text.

    ``strategy | recovery`` is the strategy with one more recovery.

    Parameters
    ----------
    drafter : Drafter
        Who guesses.
    shape : optional
        How the drafter's candidates become a draft, where it leaves that open: `Chain` if None.
    recoveries : tuple
        Watches that may step in, the innermost first.
    """

    drafter: Drafter = _NOTHING
    shape: Any = None
    recoveries: tuple[Any, ...] = ()

    @classmethod
    def of(cls, value: "Strategy | Drafter | None") -> "Strategy":
        """Take what a caller may give for a strategy: one, a drafter by itself, or None for plain decoding.

        Raises
        ------
        RequestError
            If it is something else.
        """
        if isinstance(value, cls):
            return value
        if value is None:
            return cls()
        if isinstance(value, type) or not (hasattr(value, "start") and hasattr(value, "propose")):
            raise RequestError(f"strategy: wanted a Strategy or a drafter, got {value!r:.80}")
        return cls(value)

    def __or__(self, recovery: Any) -> "Strategy":
        return replace(self, recoveries=(*self.recoveries, recovery))

    def __repr__(self) -> str:
        shape = f", shape={self.shape!r}" if self.shape is not None else ""
        plain = self.drafter == _NOTHING and not shape
        name = "Plain()" if plain else f"Strategy({self.drafter!r}{shape})"
        return " | ".join([name, *map(repr, self.recoveries)])


def Plain() -> Strategy:  # noqa: N802
    """Decode token by token, without guesses."""
    return Strategy()
