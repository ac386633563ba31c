"""Responses of ``/v1/messages``, whole and streamed."""

from collections.abc import Iterator, Sequence

from dflash.generation.completion import Completion, Delta
from dflash.generation.parsers import CallEnd, CallStart
from dflash.json_types import JsonMapping, JsonObject
from dflash.serve.anthropic.blocks import BlockStream, content_blocks
from dflash.serve.anthropic.problems import refusal_of
from dflash.serve.dialect import AnswerHead, ServerEvent
from dflash.serve.http_errors import Problem
from dflash.serve.usage import TokenCounts


class MessageFormat:
    """Format of one message.

    The first event counts the whole prompt as ``input_tokens``, since the prefix cache was not asked yet. The last one, and
    a response that is not streamed, count tokens from the prefix cache apart, as Anthropic does: the prompt has
    ``input_tokens + cache_read_input_tokens`` tokens.
    """

    def __init__(self, head: AnswerHead) -> None:
        self._head, self._blocks = head, BlockStream()

    def opening(self) -> Iterator[ServerEvent]:
        """Yield ``message_start`` and a ``ping``."""
        usage = _usage(self._head.n_prompt)
        yield _named({"type": "message_start", "message": self._message([], _ending(None, None), usage)})
        yield self.heartbeat()

    def delta(self, index: int, delta: Delta) -> Iterator[ServerEvent]:  # noqa: ARG002 - there is one completion
        """Yield the events of content blocks; the last delta closes the open one."""
        yield from map(_named, self._blocks.push(delta.events))
        if delta.step.finish is not None:
            yield from map(_named, self._blocks.end())

    def closing(self, completions: Sequence[Completion]) -> Iterator[ServerEvent]:
        """Yield ``message_delta`` with the stop reason and token counts, and ``message_stop``."""
        (completion,) = completions
        yield _named(
            {
                "type": "message_delta",
                "delta": _ending_of(completion),
                "usage": _usage_of(completion),
                **_warnings_of(completion),
            }
        )
        yield _named({"type": "message_stop"})

    def heartbeat(self) -> ServerEvent:
        """Return a ``ping``."""
        return _named({"type": "ping"})

    def failure(self, problem: Problem) -> Iterator[ServerEvent]:
        """Yield ``error``. The open block stays open, so that no client runs half a call."""
        _, body, _ = refusal_of(problem)
        yield _named(body)

    def whole(self, completions: Sequence[Completion]) -> JsonObject:
        """Return the body of a response that is not streamed."""
        (completion,) = completions
        body = self._message(content_blocks(completion.events), _ending_of(completion), _usage_of(completion))
        return {**body, **_warnings_of(completion)}

    def _message(self, content: Sequence[JsonMapping], ending: JsonMapping, usage: JsonMapping) -> JsonObject:
        return {
            "id": f"msg_{self._head.id}",
            "type": "message",
            "role": "assistant",
            "model": self._head.model,
            **self._head.fingerprint_field,
            "content": content,
            **ending,
            "usage": usage,
        }


def _named(data: JsonMapping) -> ServerEvent:
    return ServerEvent(data, data["type"])


def _warnings_of(completion: Completion) -> dict[str, list[str]]:
    return {"warnings": list(completion.session.warnings)} if completion.session.warnings else {}


def _ending_of(completion: Completion) -> dict[str, str | None]:
    if completion.session.finish_reason == "length":
        return _ending("max_tokens", None)
    n_calls, n_complete = (sum(isinstance(event, kind) for event in completion.events) for kind in (CallStart, CallEnd))
    if completion.stop_string is not None and not (n_calls and n_calls == n_complete):
        return _ending("stop_sequence", completion.stop_string)
    return _ending("tool_use" if n_calls else "end_turn", None)


def _ending(reason: str | None, stop_string: str | None) -> dict[str, str | None]:
    return {"stop_reason": reason, "stop_sequence": stop_string}


def _usage_of(completion: Completion) -> JsonObject:
    counts = TokenCounts.of([completion])
    return _usage(counts.prompt, counts.cached, counts.output, counts.reasoning)


def _usage(prompt: int, cached: int = 0, output: int = 0, reasoning: int = 0) -> JsonObject:
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": output,
        "output_tokens_details": {"thinking_tokens": reasoning},
    }
