"""Anthropic's error object."""

from collections.abc import Mapping

from dflash.json_types import JsonMapping
from dflash.serve.admin.request_record import current_id, request_id
from dflash.serve.http_errors import Problem

OVERLOADED = 529
"""Anthropic's status for a server with too many requests; clients wait for ``Retry-After`` and try again."""

_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    OVERLOADED: "overloaded_error",
}


def refusal_of(problem: Problem) -> tuple[int, JsonMapping, Mapping[str, str]]:
    """Return the status, body and headers for a problem.

    503 becomes 529, except after a failure of the engine, which no retry can mend: 500. A prompt that is too long is refused
    in Anthropic's words, by which clients know that they have to shorten it.
    """
    status = problem.status
    if status == 503:
        status = 500 if problem.code == "engine_failed" else OVERLOADED
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    message, overflow, identifier = problem.message, problem.overflow, current_id() or request_id(None)
    if overflow is not None:
        most = min(overflow.context, overflow.n_tokens - 1)  # a prompt that fills the context leaves no room for a token
        message = f"prompt is too long: {overflow.n_tokens} tokens > {most} maximum"
    body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": identifier}
    return status, body, {**problem.headers, "request-id": identifier}
