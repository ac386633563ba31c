"""Mapping of errors to an HTTP status and OpenAI's error object."""

import logging
from collections.abc import Mapping
from typing import NamedTuple

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
from dflash.generation.messages.fields import FieldError
from dflash.json_types import JsonObject

log = logging.getLogger("dflash.serve")

MAX_MESSAGE = 600
"""Maximum characters of a message; one that lists every strategy has about 400."""

INTERNAL = "the server failed on this request; see the server's log"

_FIELDS = {"documents": "chat_template_kwargs.documents"}
"""Argument of the chat template to the field of a body, where the names differ."""


class Overflow(NamedTuple):
    """A prompt of `n_tokens`, or at least as many, for a context of `context` tokens."""

    n_tokens: int
    context: int


class Problem(Exception):
    """A response with a status other than 200.

    overflow: length of a prompt that is too long. Clients know the words of each API for it.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        overflow: Overflow | None = None,
    ) -> None:
        super().__init__(message)
        self.headers = dict(headers or ({"Retry-After": "1"} if status == 503 else {}))
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.overflow = overflow

    @property
    def kind(self) -> str:
        """OpenAI's ``type`` for the status."""
        if self.status == 401:
            return "authentication_error"
        return "invalid_request_error" if self.status < 500 else "server_error"

    def body(self) -> JsonObject:
        """OpenAI's error object."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}


def closing() -> Problem:
    """Return the response to requests that are open during a shutdown."""
    return Problem(503, "the server is shutting down", code="shutting_down")


def problem_of(error: BaseException) -> Problem:
    """Return the response to a request that ended in `error`.

    error: errors caused by the client are described in the response, with file names in place of paths. Internal errors are
        logged; the response only says that there was one.
    """
    match error:
        case Problem():
            return error
        case FieldError():
            return Problem(400, _described(error), param=error.field or None)
        case ContextOverflow():
            known = error.n_tokens is not None and error.context is not None
            overflow = Overflow(error.n_tokens or 0, error.context or 0) if known else None
            return Problem(400, _described(error), code="context_length_exceeded", overflow=overflow)
        case TemplateError():
            return Problem(400, _described(error), param=_FIELDS.get(error.argument, error.argument))
        case RequestError():
            return Problem(400, _described(error))
        case Cancelled():
            return closing()
        case EngineFailed() | DeviceLost():
            log.error("a request failed: %s", error)
            return Problem(503, "the engine has failed; see the server's log", code="engine_failed")
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
