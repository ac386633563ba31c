"""A way of decoding, as a value."""

from dataclasses import dataclass, replace
from typing import Any

from dflash.decode.drafting.drafter import Drafter, Nothing
from dflash.errors import RequestError

_NOTHING = Nothing()


@dataclass(frozen=True, repr=False)
class Strategy:
    """Who guesses, in what shape, and what watches over it. Holds settings, no request; no strategy changes the text.

    ``strategy | recovery`` is the strategy with one more recovery.

    Parameters
    ----------
    drafter : Drafter or str
        Who guesses; a name of `dflash.decode.registry` may bring the shape along, as ``"ddtree:22"``.
    shape : optional
        How the drafter's candidates become a draft, where it leaves that open: `Chain` if None.
    recoveries : tuple
        Watches that may step in, the innermost first.

    Raises
    ------
    RequestError
        If there is no such name, or it brings a shape where another is given, or something else is given for one of them.
    """

    drafter: Drafter = _NOTHING
    shape: Any = None
    recoveries: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        """Put what a name stands for in its place."""
        if self.shape is not None and (isinstance(self.shape, type) or not hasattr(self.shape, "wants")):
            raise RequestError(f"strategy: wanted a shape, as Chain(3) or Tree(22), got {self.shape!r:.80}")
        if not isinstance(self.drafter, str):
            if isinstance(self.drafter, type) or not (hasattr(self.drafter, "start") and hasattr(self.drafter, "propose")):
                raise RequestError(f"strategy: wanted a name, a Strategy or a drafter, got {self.drafter!r:.80}")
            return
        named = _named(self.drafter)
        if named.shape is not None and self.shape is not None:
            raise RequestError(
                f"strategy {self.drafter!r}: has a shape of its own, {named.shape!r}, got {self.shape!r}, too"
            )
        object.__setattr__(self, "shape", self.shape if named.shape is None else named.shape)
        object.__setattr__(self, "drafter", named.drafter)

    @classmethod
    def of(cls, value: "Strategy | Drafter | str | None") -> "Strategy":
        """Take what a caller may give for a strategy: one, its name, a drafter by itself, or None for plain decoding.

        Raises
        ------
        RequestError
            If it is something else, or there is no such name.
        """
        if isinstance(value, cls):
            return value
        if value is None:
            return cls()
        return _named(value) if isinstance(value, str) else cls(value)

    def __or__(self, recovery: Any) -> "Strategy":
        return replace(self, recoveries=(*self.recoveries, recovery))

    def __repr__(self) -> str:
        shape = f", shape={self.shape!r}" if self.shape is not None else ""
        plain = self.drafter == _NOTHING and not shape
        name = "Plain()" if plain else f"Strategy({self.drafter!r}{shape})"
        return " | ".join([name, *map(repr, self.recoveries)])


def _named(text: str) -> Strategy:
    from dflash.decode.registry import strategy  # knows all drafters, and those know strategies

    return strategy(text)


def Plain() -> Strategy:  # noqa: N802
    """Decode token by token, without guesses."""
    return Strategy()
