"""What else was loaded to go with a model: drafts and their like."""

from typing import Any


class Companions(dict[Any, Any]):
    """Whatever drafters load for a model, by a key of theirs; closed with the model."""

    def close(self) -> None:
        """Close those that can be closed, the youngest first, and forget all; harmless if done before."""
        while self:
            close = getattr(self.popitem()[1], "close", None)
            if close is not None:
                close()
