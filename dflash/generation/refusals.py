"""Cache of drafters that could not be loaded, so that repeated requests for them are refused at once."""

import threading
import time
from typing import NamedTuple

from dflash.decode.drafting.drafter import Drafter
from dflash.errors import DFlashError, DownloadError, ModelError, RequestError
from dflash.model.attachments import Recent
from dflash.model.loading.hub import stamp

_CAPACITY = 64
"""Drafters whose errors are remembered."""

_SECONDS = 60.0
"""Seconds until a refused model on the hub is tried again: changes on the hub can't be seen without a request."""

_LASTING = ModelError, DownloadError, RequestError
"""Errors that a repeated attempt would raise again. Lack of memory is not one: there may be enough later."""


class _Refusal(NamedTuple):
    error: DFlashError
    files: object
    until: float


class Refused:
    """Remembers errors of drafters until their files change. Thread-safe."""

    def __init__(self) -> None:
        self._known, self._lock = Recent[Drafter, _Refusal](_CAPACITY), threading.Lock()

    def __len__(self) -> int:
        return len(self._known)

    def files(self, drafter: Drafter) -> object:
        """Return a stamp of the files of a drafter for `add`. Call it before the files are read."""
        source = getattr(drafter, "source", None)
        return () if source is None else stamp(source)

    def add(self, drafter: Drafter, error: BaseException, files: object) -> None:
        """Remember the error of a drafter that loads files, if the next attempt would fail in the same way."""
        if hasattr(drafter, "source") and isinstance(error, _LASTING):
            until = float("inf") if files is not None else time.monotonic() + _SECONDS
            with self._lock:
                self._known.keep(drafter, _Refusal(anew(error), files, until))

    def error_of(self, drafter: Drafter) -> DFlashError | None:
        """Return the remembered error of a drafter; None if there is none or another attempt may succeed."""
        with self._lock:
            known = self._known.recall(drafter)
        if known is None or time.monotonic() >= known.until or self.files(drafter) != known.files:
            return None
        return anew(known.error)


def anew(error: DFlashError) -> DFlashError:
    """Return a copy of an error, with its path, but without its traceback, whose frames would keep the model in memory."""
    twin = type(error).__new__(type(error))
    twin.args = error.args
    vars(twin).update(vars(error))
    return twin
