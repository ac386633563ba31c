"""Objects attached to a model, such as draft models that drafters have loaded for it."""

from collections import OrderedDict
from collections.abc import Hashable
from contextlib import ExitStack
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Attachments(dict[Hashable, Any]):
    """Objects that drafters load for a model, by a key of the drafter; closed with the model."""

    def close(self) -> None:
        """Close all objects that have a `close` method, newest first, and remove them; later calls have no effect.

        If one of them raises, the others are still closed.
        """
        with ExitStack() as others:
            for companion in self.values():
                close = getattr(companion, "close", None)
                if close is not None:
                    others.callback(close)
            self.clear()


class Recent(OrderedDict[K, V]):
    """Cache of the most recently used entries.

    capacity: most entries; the least recently used ones beyond it are dropped.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity

    def recall(self, key: K) -> V | None:
        """Return the value of a key and count this as a use; None if there is no such key."""
        if key not in self:
            return None
        self.move_to_end(key)
        return self[key]

    def keep(self, key: K, value: V) -> None:
        """Add or replace an entry, and drop the least recently used one if there are too many."""
        self[key] = value
        self.move_to_end(key)
        while len(self) > self.capacity:
            self.popitem(last=False)
