"""Drafters that could not be loaded, so that the next request for one of them costs nothing."""

import threading
import time
from typing import Any, NamedTuple

from dflash.errors import DFlashError, DownloadError, ModelError, RequestError
from dflash.model.attachments import Recent
from dflash.model.hub import stamp

_CAPACITY = 64
_SECONDS = 60.0
"""How long a refusal of a model on the hub holds: whether it has changed is known only by asking."""

_LASTING = ModelError, DownloadError, RequestError
"""Errors that would come again. Memory that is short now may do later."""


class _Refusal(NamedTuple):
    error: DFlashError
    files: Any
    until: float


class Refused:
    """Remembers why drafters were refused, until their files change. Used by several threads."""

    def __init__(self) -> None:
        self._known, self._lock = Recent(_CAPACITY), threading.Lock()

    def __len__(self) -> int:
        return len(self._known)

    def files(self, drafter: Any) -> Any:
        """Describe the files of a drafter, to be handed to `add`; to be called before they are read."""
        source = getattr(drafter, "source", None)
        return () if source is None else stamp(source)

    def add(self, drafter: Any, error: BaseException, files: Any) -> None:
        """Remember that a drafter was refused, if it loads something and the next attempt would end alike."""
        if hasattr(drafter, "source") and isinstance(error, _LASTING):
            until = float("inf") if files is not None else time.monotonic() + _SECONDS
            with self._lock:
                self._known.keep(drafter, _Refusal(anew(error), files, until))

    def error_of(self, drafter: Any) -> DFlashError | None:
        """Return why a drafter was refused; None if it was not, or may be worth another attempt."""
        with self._lock:
            known = self._known.recall(drafter)
        if known is None or time.monotonic() >= known.until or self.files(drafter) != known.files:
            return None
        return anew(known.error)


def anew(error: DFlashError) -> DFlashError:
    """Return the same error without its traceback, whose frames hold the model."""
    return type(error)(*error.args)
