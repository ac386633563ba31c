"""What else was loaded to go with a model: drafts and their like."""

from contextlib import ExitStack
from typing import Any


class Companions(dict[Any, Any]):
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
