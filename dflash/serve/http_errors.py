"""What goes wrong, in the words of HTTP: a status and OpenAI's error object."""

import logging
from collections.abc import Mapping
from typing import Any

from dflash.errors import (
    Cancelled,
    ContextOverflow,
    DeviceLost,
    DFlashError,
    EngineFailed,
    PoolExhausted,
    QueueFull,
    RequestError,
    TemplateError,
    public_message,
)
from dflash.serve.fields import FieldError

log = logging.getLogger("dflash.serve")

MAX_MESSAGE = 600
"""Characters of a message; an error that lists every strategy has some 400."""

INTERNAL = "the server failed on this request; its log says why"

_FIELDS = {"documents": "chat_template_kwargs.documents"}
"""Fields of a body for arguments of the chat template, where they are called otherwise."""


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
    """Return the response to a request that ended in `error`.

    Parameters
    ----------
    error : BaseException
        A mistake of the client is described to it, with names of files in place of their paths. What went wrong inside the
        server is logged, and the client is told only that it did.
    """
    match error:
        case Problem():
            return error
        case FieldError():
            return Problem(400, _described(error), param=error.field or None)
        case ContextOverflow():
            return Problem(400, _described(error), code="context_length_exceeded")
        case TemplateError():
            return Problem(400, _described(error), param=_FIELDS.get(error.argument, error.argument))
        case RequestError():
            return Problem(400, _described(error))
        case Cancelled():
            return closing()
        case EngineFailed() | DeviceLost():
            log.error("a request failed: %s", error)
            return Problem(503, "the engine has failed; the server's log says why", code="engine_failed")
        case PoolExhausted() | QueueFull():
            return Problem(503, _described(error), code="overloaded")
        case DFlashError():
            log.error("a request failed: %s", error)
            return Problem(500, INTERNAL)
    log.error("a request failed", exc_info=error)
    return Problem(500, INTERNAL)


def _described(error: BaseException) -> str:
    message = public_message(error)
    return message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 3] + "..."
