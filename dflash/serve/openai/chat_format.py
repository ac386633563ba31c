"""Responses of ``/v1/chat/completions``."""

from collections.abc import Iterator, Sequence

from dflash.decode.session import TokenLogprobs
from dflash.generation.completion import Completion, Delta
from dflash.generation.parsers import ArgumentsDelta, CallStart, ContentDelta, Event, ParsedOutput, ReasoningDelta
from dflash.json_types import JsonMapping, JsonObject
from dflash.serve.dialect import AnswerHead, ServerEvent
from dflash.serve.openai.chunks import LOWEST, ChunkFormat
from dflash.serve.openai.usage import remarks
from dflash.serve.requests import ChatRequest


class ChatFormat(ChunkFormat):
    """Format of one chat completion. Reasoning is in ``reasoning_content``, as in DeepSeek's API and llama.cpp."""

    def __init__(self, request: ChatRequest, head: AnswerHead) -> None:
        super().__init__(
            head, request.options, prefix="chatcmpl", kind="chat.completion", chunk_kind="chat.completion.chunk"
        )
        self._open = dict.fromkeys(range(request.options.n))
        self._called: set[int] = set()
        self._echo = _text_of(request.messages[-1]) if request.echo_message else ""

    def opening(self) -> Iterator[ServerEvent]:
        """Yield a chunk with the role for each choice, and the message that is continued for ``echo``."""
        for index in self._open:
            ids = self._ids(index, (), with_prompt=True)
            prompt = {name: value for name, value in ids.items() if name == "prompt_token_ids"}
            yield self._chunk(self._choice(index, {"role": "assistant", "content": self._echo}), **prompt)

    def delta(self, index: int, delta: Delta) -> Iterator[ServerEvent]:
        """Yield chunks with reasoning, text and tool calls, and one with the finish reason."""
        self._n_sent += len(delta.step.tokens)
        pieces = [piece for event in self._wanted(delta.events) if (piece := _piece(event)) is not None]
        logprobs = self._logprobs(delta.logprobs) if delta.logprobs else None
        ids = self._ids(index, delta.step.tokens, with_prompt=False) if delta.step.tokens else {}
        if not pieces and (logprobs is not None or ids):
            pieces.append({"content": ""})
        for piece in pieces:
            yield self._chunk({**self._choice(index, piece, logprobs=logprobs), **ids})
            logprobs, ids = None, {}
        if any(isinstance(event, CallStart) for event in delta.events):
            self._called.add(index)
        if delta.step.finish is not None:
            del self._open[index]
            reason = _finish_reason(delta.step.finish, called=index in self._called)
            ending = self._choice(index, {}, finish_reason=reason)
            yield self._chunk(ending, **remarks([self._completions[index]]))

    def heartbeat(self) -> ServerEvent:
        """Return a chunk that adds nothing."""
        return self.nothing(next(iter(self._open), 0))

    def nothing(self, index: int) -> ServerEvent:
        """Return a chunk of a choice that adds nothing."""
        return self._chunk(self._choice(index, {"content": ""}))

    def _whole_choice(self, index: int, completion: Completion) -> JsonObject:
        output = completion.output or ParsedOutput(completion.text)
        content = self._echo + output.content
        message: JsonObject = {"role": "assistant", "content": content}
        if output.reasoning and self._options.include_reasoning:
            message["reasoning_content"] = output.reasoning
        if output.tool_calls:
            message["content"] = content or None
            message["tool_calls"] = [call.as_message() for call in output.tool_calls]
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(completion.logprobs),
            "finish_reason": _finish_reason(completion.session.finish_reason, called=bool(output.tool_calls)),
            **self._ids(index, completion.session.output_ids, with_prompt=False),
        }

    def whole(self, completions: Sequence[Completion]) -> JsonObject:
        """Return the body of a response that is not streamed, with ids and log-probabilities of the prompt at its top."""
        body = super().whole(completions)
        if self._options.token_ids:
            body["prompt_token_ids"] = completions[0].session.prompt_ids
        if self._options.prompt_logprobs is not None:
            body["prompt_logprobs"] = self._prompt_logprobs(0)
        return body

    def _wanted(self, events: Sequence[Event]) -> Sequence[Event]:
        if self._options.include_reasoning:
            return events
        return [event for event in events if not isinstance(event, ReasoningDelta)]

    def _choice(
        self,
        index: int,
        delta: JsonMapping,
        *,
        logprobs: JsonMapping | None = None,
        finish_reason: str | None = None,
    ) -> JsonObject:
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}

    def _logprobs(self, entries: Sequence[TokenLogprobs]) -> JsonObject | None:
        if not self._with_logprobs:
            return None
        content = [
            {
                **self._token(entry.token, entry.logprob),
                "top_logprobs": [self._token(token, logprob) for token, logprob in entry.top],
            }
            for entry in entries
        ]
        return {"content": content, "refusal": None}

    def _token(self, token: int, logprob: float) -> JsonObject:
        raw = self._tokenizer.token_bytes(token)
        return {"token": self._token_text(token), "logprob": max(logprob, LOWEST), "bytes": list(raw)}


def _piece(event: Event) -> JsonObject | None:
    """Return the delta of a chunk; None for the end of a call, which has none."""
    match event:
        case ContentDelta():
            return {"content": event.text}
        case ReasoningDelta():
            return {"reasoning_content": event.text}
        case CallStart():
            function = {"name": event.name, "arguments": ""}
            return {"tool_calls": [{"index": event.index, "id": event.id, "type": "function", "function": function}]}
        case ArgumentsDelta():
            return {"tool_calls": [{"index": event.index, "function": {"arguments": event.text}}]}
    return None


def _text_of(message: JsonMapping) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _finish_reason(reason: str | None, *, called: bool) -> str | None:
    return "tool_calls" if called and reason == "stop" else reason
