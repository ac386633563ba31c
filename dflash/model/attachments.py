"""What else was loaded to go with a model: drafts and their like."""

from collections import OrderedDict
from contextlib import ExitStack
from typing import Any


class Attachments(dict[Any, Any]):
    """Whatever drafters load for a model, by a key of theirs; closed with the model."""

    def close(self) -> None:
        """Close those that can be closed, the youngest first, even if one of them fails, and forget all.

        Harmless if done before.
        """
        with ExitStack() as others:
            for companion in self.values():
                close = getattr(companion, "close", None)
                if close is not None:
                    others.callback(close)
            self.clear()


class Recent(OrderedDict[Any, Any]):
    """The entries that were used last. Requests may add as many as they like: the oldest are dropped.

    Parameters
    ----------
    capacity : int
        Entries that are kept.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity

    def recall(self, key: Any) -> Any:
        """Return the value of a key, which counts as a use; None if it is not there."""
        if key not in self:
            return None
        self.move_to_end(key)
        return self[key]

    def keep(self, key: Any, value: Any) -> None:
        """Add or replace an entry, and drop the one that was used longest ago if there are too many."""
        self[key] = value
        self.move_to_end(key)
        while len(self) > self.capacity:
            self.popitem(last=False)
