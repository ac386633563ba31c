"""Record of one HTTP request for logs and metrics; counts of responses."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import perf_counter
from uuid import uuid4

from dflash.generation.completion import Completion

UNMATCHED = "unmatched"
"""Route of requests to paths that no route serves. The path itself is never logged: clients choose it."""

_SANE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


@dataclass(slots=True)
class RequestRecord:
    """One HTTP request while it is answered.

    request_id: the client's ``X-Request-Id`` if it is sane, else a new id.
    method, route: HTTP method, and the path of the route, such as ``/v1/models/{name:path}``.
    status: status of the response; 499 while there is none.
    """

    request_id: str
    method: str
    route: str
    status: int = 499
    completions: list[Completion] = field(default_factory=list)
    began: float = field(default_factory=perf_counter)

    def line(self) -> str:
        """Return one line for the access log: no prompt, no output, no key."""
        seconds = perf_counter() - self.began
        parts = [self.method, self.route, str(self.status), f"id={self.request_id}"]
        sessions = [completion.session for completion in self.completions]
        if sessions:
            prompts = {id(session.prompt_array): session for session in sessions}.values()  # choices share their prompt
            first = min((session.first_token_at for session in sessions if session.first_token_at), default=None)
            drafted, accepted = (sum(getattr(session, name) for session in sessions) for name in ("n_drafted", "n_accepted"))
            reasons = sorted({session.finish_reason or "cancelled" for session in sessions})
            parts += [
                f"prompt={sum(session.n_prompt for session in prompts)}",
                f"cached={sum(session.n_cached for session in prompts)}",
                f"output={sum(session.n_tokens for session in sessions)}",
                f"ttft={'-' if first is None else f'{first - self.began:.3f}'}",
                f"accepted={accepted}/{drafted}",
                f"finish={','.join(reasons)}",
            ]
        return " ".join([*parts, f"seconds={seconds:.3f}"])


CURRENT: ContextVar[RequestRecord | None] = ContextVar("dflash_request", default=None)
"""Record of the request that the running task answers; None outside of requests."""


def note(completions: Iterable[Completion]) -> None:
    """Add completions to the record of the present request, if there is one."""
    record = CURRENT.get()
    if record is not None:
        record.completions += completions


def current_id() -> str | None:
    """Return the id of the present request, which its response carries as ``X-Request-Id``."""
    record = CURRENT.get()
    return None if record is None else record.request_id


def request_id(given: str | None) -> str:
    """Return the client's id of a request if it has at most 128 letters, digits and ``._:-``, else a new one."""
    return given if given is not None and _SANE_ID.fullmatch(given) else f"req_{uuid4().hex}"


class RequestCounts:
    """Responses by route, method and status. Changed in the event loop only."""

    _METHODS: Sequence[str] = ("GET", "HEAD", "POST", "OPTIONS", "DELETE", "PUT", "PATCH")

    def __init__(self) -> None:
        self.responses: Counter[tuple[str, str, int]] = Counter()

    def add(self, record: RequestRecord) -> None:
        """Count a response. Methods that HTTP does not name count together, so that clients can't make up metrics."""
        method = record.method if record.method in self._METHODS else "other"
        self.responses[record.route, method, record.status] += 1
