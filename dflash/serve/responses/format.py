"""Responses of the Responses API, whole and streamed."""

from collections.abc import Iterator, Sequence
from typing import Any

from dflash.decode.session import Session
from dflash.generation.completion import Completion, Delta
from dflash.json_types import JsonMapping, JsonObject
from dflash.serve.dialect import AnswerHead, ErrorFormat, ServerEvent
from dflash.serve.http_errors import Problem
from dflash.serve.openai.usage import remarks
from dflash.serve.responses.output import Output
from dflash.serve.responses.output_items import Payload
from dflash.serve.responses.request import ResponsesRequest
from dflash.serve.responses.store import ResponseStore
from dflash.serve.usage import TokenCounts

NOT_ENCRYPTED = "not-encrypted:see-summary"
"""Value of ``encrypted_content``. Nothing is encrypted: the reasoning is in the item, and is read from there."""

_FAILED = {"context_length_exceeded", "rate_limit_exceeded", "server_error", "invalid_prompt"}


class ResponsesFormat:
    """Format of one response. store: takes the response when it is finished, if the request allows."""

    def __init__(self, request: ResponsesRequest, head: AnswerHead, store: ResponseStore, errors: ErrorFormat) -> None:
        self._request, self._head, self._store, self._errors = request, head, store, errors
        encrypted = NOT_ENCRYPTED if request.wants_encrypted else None
        self._output = Output(head.id, request.tools_by_name, encrypted)
        self._n_events = 0

    def opening(self) -> Iterator[ServerEvent]:
        """Yield the response as it is before its first token."""
        yield self._event("response.created", response=self._body("in_progress"))
        yield self._event("response.in_progress", response=self._body("in_progress"))

    def delta(self, index: int, delta: Delta) -> Iterator[ServerEvent]:  # noqa: ARG002 - there is one completion
        """Yield the events of items and their parts."""
        for event in delta.events:
            yield from self._numbered(self._output.read(event))
        if delta.step.finish is not None:
            yield from self._numbered(self._output.finish(cut=delta.step.finish != "stop"))

    def closing(self, completions: Sequence[Completion]) -> Iterator[ServerEvent]:
        """Yield the terminal event with the whole response."""
        body = self._finished(completions)
        yield self._event(f"response.{body['status']}", response=body)

    def heartbeat(self) -> ServerEvent:
        """Return the response as it is before its first token."""
        return self._event("response.in_progress", response=self._body("in_progress"))

    def failure(self, problem: Problem) -> Iterator[ServerEvent]:
        """Yield the terminal event of a stream that has failed. Items that were not complete are dropped."""
        code = problem.code if problem.code in _FAILED else "invalid_prompt" if problem.status < 500 else "server_error"
        _, body, _ = self._errors.problem(problem)
        error = {"code": code, "message": body["error"]["message"]}
        yield self._event("response.failed", response=self._body("failed", error=error, output=[*self._output.items]))

    def whole(self, completions: Sequence[Completion]) -> JsonObject:
        """Return the body of a response that is not streamed."""
        for event in completions[0].events:
            list(self._output.read(event))  # which adds to its items
        list(self._output.finish(cut=completions[0].session.finish_reason != "stop"))
        return self._finished(completions)

    def _finished(self, completions: Sequence[Completion]) -> JsonObject:
        counts = TokenCounts.of(completions)
        is_cut = completions[0].session.finish_reason != "stop"
        body = self._body(
            "incomplete" if is_cut else "completed",
            completed_at=None if is_cut else self._head.created + _seconds(completions[0].session),
            incomplete_details={"reason": "max_output_tokens"} if is_cut else None,
            output=[*self._output.items],
            usage={
                "input_tokens": counts.prompt,
                "input_tokens_details": {"cached_tokens": counts.cached, "cache_write_tokens": 0},
                "output_tokens": counts.output,
                "output_tokens_details": {"reasoning_tokens": counts.reasoning},
                "total_tokens": counts.prompt + counts.output,
            },
            **remarks(completions),
        )
        if self._request.store:
            self._store.add(body, self._request.items, self._request.echo["previous_response_id"], self._request.user)
        return body

    def _body(self, status: str, **fields: Any) -> JsonObject:
        body: JsonObject = {
            "id": f"resp_{self._head.id}",
            "object": "response",
            "created_at": self._head.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": self._head.model,
            **self._head.fingerprint_field,
            "output": [],
            **self._request.echo,
            "completed_at": None,
            "service_tier": "default",
            "top_logprobs": 0,
            "usage": None,
        }
        return {**body, **fields}

    def _numbered(self, payloads: Iterator[Payload]) -> Iterator[ServerEvent]:
        for kind, fields in payloads:
            yield self._event(kind, **fields)

    def _event(self, kind: str, **fields: Any) -> ServerEvent:
        data: JsonMapping = {"type": kind, "sequence_number": self._n_events, **fields}
        self._n_events += 1
        return ServerEvent(data, kind)


def _seconds(session: Session) -> int:
    """Return the whole seconds from the request to its end."""
    added, ended = (getattr(session, name, None) for name in ("added_at", "ended_at"))  # a fake has no times
    return 0 if added is None or ended is None else int(ended - added)
