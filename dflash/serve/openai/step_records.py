"""The field ``dflash`` of chunks: steps of the engine, for streams with ``"dflash": {"steps": true}``."""

import codecs
from collections.abc import Iterator, Mapping

from dflash.decode.metrics import accepted_nodes
from dflash.decode.step import Step
from dflash.generation.completion import Delta
from dflash.generation.display.origins import kinds
from dflash.json_types import JsonObject
from dflash.model.text.tokenizer import Tokenizer
from dflash.serve.dialect import AnswerHead, ServerEvent
from dflash.serve.openai.chat_format import ChatFormat
from dflash.serve.openai.chunks import ChunkFormat
from dflash.serve.openai.completion_format import CompletionFormat
from dflash.serve.requests import ChatRequest, CompletionRequest, Options


class StepTokens:
    """Writes the tokens of one choice's steps; called with every step, in order.

    A character belongs to the token that completes it, so the joined texts of all tokens but the control tokens are the text
    of the completion as the model wrote it, with the tags of reasoning and tool calls.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def of(self, step: Step) -> JsonObject:
        """Return the fields of a step's record.

        Returns: ``pieces``: for each token its origin (a key of `dflash.generation.display.palette.MEANING`), its text, and
            ``"control"`` for a control token or ``"added"`` for one such as ``<think>``. ``draft``: for each draft token its
            text and the index of its parent, -1 for the last token of the sequence. ``path``: indices of the accepted ones.
        """
        pieces = [
            [origin, *self._piece(token)] for token, origin in zip(step.tokens, kinds(step)[: len(step.tokens)], strict=True)
        ]
        draft = [
            [self._alone(token), parent]
            for token, parent in zip(step.draft.tokens.tolist(), step.draft.parents.tolist(), strict=True)
        ]
        return {"pieces": pieces, "draft": draft, "path": accepted_nodes(step)}

    def _piece(self, token: int) -> list[str]:
        if self._tokenizer.is_special(token):
            return [self._alone(token), "control"]
        text = self._decoder.decode(self._tokenizer.token_bytes(token))
        return [text, "added"] if self._tokenizer.is_added(token) else [text]

    def _alone(self, token: int) -> str:
        return self._tokenizer.token_bytes(token).decode("utf-8", "replace")


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
