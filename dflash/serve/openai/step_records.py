"""The field ``dflash`` of chunks: steps of the engine, for streams with ``"dflash": {"steps": true}``."""

from collections.abc import Iterator, Mapping

from dflash.decode.step import Step
from dflash.generation.completion import Delta
from dflash.json_types import JsonObject
from dflash.serve.dialect import AnswerHead, ServerEvent
from dflash.serve.openai.chat_format import ChatFormat
from dflash.serve.openai.chunks import ChunkFormat
from dflash.serve.openai.completion_format import CompletionFormat
from dflash.serve.openai.step_tokens import StepTokens
from dflash.serve.requests import ChatRequest, CompletionRequest, Options


class _StepRecords(ChunkFormat):
    """Adds a record of each step that produced or drafted tokens to the format of a response.

    The record is in the last chunk of the step. A step without a chunk, such as one that ends inside a character, gets one
    that adds nothing else. With ``"tokens": true`` the records hold the texts of tokens and drafts, see `StepTokens`.
    """

    def _prepare_records(self, options: Options, head: AnswerHead) -> None:
        self._warm_up = {"warm_up": True} if head.warm_up else {}
        self._tokens = [StepTokens(head.tokenizer) for _ in head.completions] if options.step_tokens else []

    def delta(self, index: int, delta: Delta) -> Iterator[ServerEvent]:
        """Yield the chunks of the format, the last one with the record of the step."""
        events = list(super().delta(index, delta))
        if delta.step.tokens or delta.step.drafted:
            last = events.pop() if events else self.nothing(index)
            assert isinstance(last.data, Mapping), "chunks are JSON objects"
            texts = self._tokens[index].of(delta.step) if self._tokens else {}
            record = {**_record(index, delta.step), **self._warm_up, **texts}
            events.append(last._replace(data={**last.data, "dflash": record}))
        yield from events


class ChatSteps(_StepRecords, ChatFormat):
    """Format of one chat completion with records of its steps."""

    def __init__(self, request: ChatRequest, head: AnswerHead) -> None:
        super().__init__(request, head)
        self._prepare_records(request.options, head)


class CompletionSteps(_StepRecords, CompletionFormat):
    """Format of one response to a completion request with records of its steps."""

    def __init__(self, request: CompletionRequest, head: AnswerHead) -> None:
        super().__init__(request, head)
        self._prepare_records(request.options, head)


def _record(index: int, step: Step) -> JsonObject:
    """Return the record of a step of choice `index`.

    Seconds are those of all sequences in the step, but for ``verify_seconds``.
    """
    parts = {"propose": step.propose, "forward": step.forward, "verify": step.verify}
    return {
        "index": index,
        "tokens": len(step.tokens),
        "drafted": step.drafted,
        "accepted": step.accepted,
        "depth": step.draft.depth,
        "seconds": round(sum(parts.values()) + step.commit, 6),
        **{f"{name}_seconds": round(seconds, 6) for name, seconds in parts.items()},
    }
