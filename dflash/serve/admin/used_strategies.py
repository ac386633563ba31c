"""Strategies that a server has used, so that the first use of one is not taken for its speed."""

from collections.abc import Sequence

from dflash.decode import registry
from dflash.decode.drafting.drafter import Strategy
from dflash.decode.engine import Event


class UsedStrategies:
    """Remembers the strategies of completions that have ended; an observer of `EngineThread`.

    The first completion of a strategy loads or compiles kernels between its steps. The words of its name count, without
    options: they choose the kernels.
    """

    def __init__(self) -> None:
        self._used: set[frozenset[str]] = set()

    def __call__(self, events: Sequence[Event], seconds: float) -> None:  # noqa: ARG002
        """Note the strategies of sequences that have ended. Called in the engine thread."""
        self._used.update(_words(session.strategy) for session, step in events if step.finish is not None)

    def __contains__(self, strategy: Strategy) -> bool:
        return _words(strategy) in self._used


def _words(strategy: Strategy) -> frozenset[str]:
    return frozenset(registry.words_of(registry.name(strategy)))
