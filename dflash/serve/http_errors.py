"""What goes wrong, in the words of HTTP: a status and OpenAI's error object."""

import logging
import re
from collections.abc import Mapping
from typing import Any

from dflash.errors import (
    Cancelled,
    ContextOverflow,
    DeviceLost,
    DFlashError,
    EngineFailed,
    ModelError,
    PoolExhausted,
    QueueFull,
    RequestError,
    TemplateError,
    Unsupported,
)
from dflash.serve.fields import FieldError

log = logging.getLogger("dflash.serve")

_GENERAL = "the server failed on this request; its log says why"
_FOLDERS = re.compile(r"/(?:[^/:'\"\n]+/)+")
"""Folders of a path, which may have spaces."""


class Problem(Exception):
    """An answer other than 200.

    Parameters
    ----------
    status : int
        HTTP status.
    message : str
        One sentence for the caller.
    param : str, optional
        The field of the body that is to blame.
    code : str, optional
        OpenAI's short name of the case.
    headers : mapping of str to str, optional
        Headers of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.headers = dict(headers or ({"Retry-After": "1"} if status == 503 else {}))
        self.status = status
        self.message = message
        self.param = param
        self.code = code

    @property
    def kind(self) -> str:
        """OpenAI's ``type`` for the status."""
        if self.status == 401:
            return "authentication_error"
        return "invalid_request_error" if self.status < 500 else "server_error"

    def body(self) -> dict[str, Any]:
        """OpenAI's error object."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}


def closing() -> Problem:
    """What a request is told while the server shuts down."""
    return Problem(503, "the server is shutting down", code="shutting_down")


def problem_of(error: BaseException) -> Problem:
    """The answer to a request that ended in `error`; what nobody expected is logged and told in general terms."""
    match error:
        case Problem():
            return error
        case FieldError():
            return Problem(400, str(error), param=error.field or None)
        case ContextOverflow():
            return Problem(400, str(error), code="context_length_exceeded")
        case TemplateError():
            return Problem(400, str(error), param="messages")
        case RequestError():
            return Problem(400, str(error))
        case Cancelled():
            return closing()
        case EngineFailed() | DeviceLost():
            log.error("a request failed: %s", error)
            return Problem(503, "the engine has failed; the server's log says why", code="engine_failed")
        case PoolExhausted() | QueueFull():
            return Problem(503, str(error), code="overloaded")
        case DFlashError():
            log.error("a request failed: %s", error)
            return Problem(500, _GENERAL)
    log.error("a request failed", exc_info=error)
    return Problem(500, _GENERAL)


def public(error: ModelError) -> str:
    """What a client may read of an error of the server's own files: no folders, and nothing of a damaged or missing file.

    The whole message goes to the log.
    """
    log.warning("a draft can't be used: %s", error)
    if isinstance(error, Unsupported):
        return _FOLDERS.sub("", str(error))
    return "its draft can't be used; the server's log says why"
