"""Responses of ``/v1/completions``."""

from collections.abc import Iterator, Sequence
from typing import Any

from dflash.decode.session import TokenLogprobs
from dflash.generation.completion import Completion, Delta
from dflash.serve.dialect import AnswerHead, ServerEvent
from dflash.serve.openai.chunks import LOWEST, ChunkFormat
from dflash.serve.openai.usage import interventions
from dflash.serve.requests import CompletionRequest


class CompletionFormat(ChunkFormat):
    """Format of one response to a completion request."""

    def __init__(self, request: CompletionRequest, head: AnswerHead) -> None:
        super().__init__(head, request.options, prefix="cmpl", kind="text_completion", chunk_kind="text_completion")
        texts = (each if isinstance(each, str) else head.tokenizer.decode(each) for each in request.prompts)
        self._echoes = [text for text in texts for _ in range(request.options.n)] if request.echo else []
        self._open = dict.fromkeys(range(request.options.n * len(request.prompts)))
        self._offsets: dict[int, int] = {}

    def opening(self) -> Iterator[ServerEvent]:
        """Yield a chunk for each choice, with the prompt for ``echo``, else without text."""
        for index in self._open:
            yield self._chunk(self._choice(index, self._echoes[index] if self._echoes else ""))

    def delta(self, index: int, delta: Delta) -> Iterator[ServerEvent]:
        """Yield a chunk with text, and one with the finish reason."""
        if delta.text or delta.logprobs:
            yield self._chunk(self._choice(index, delta.text, self._logprobs(index, delta.logprobs)))
        if delta.step.finish is not None:
            del self._open[index]
            ending = self._choice(index, "", reason=delta.step.finish)
            yield self._chunk(ending, **interventions([self._completions[index]]))

    def heartbeat(self) -> ServerEvent:
        """Return a chunk without text."""
        return self._chunk(self._choice(next(iter(self._open), 0), ""))

    def _whole_choice(self, index: int, completion: Completion) -> dict[str, Any]:
        text = self._echoes[index] + completion.text if self._echoes else completion.text
        logprobs = self._logprobs(index, completion.logprobs)
        return self._choice(index, text, logprobs, completion.session.finish_reason)

    def _choice(
        self, index: int, text: str, logprobs: dict[str, Any] | None = None, reason: str | None = None
    ) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def _logprobs(self, index: int, entries: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        if not self._with_logprobs:
            return None
        texts = [self._text(entry.token) for entry in entries]
        offsets = []
        for text in texts:
            offsets.append(self._offsets.get(index, 0))
            self._offsets[index] = offsets[-1] + len(text)
        return {
            "tokens": texts,
            "token_logprobs": [max(entry.logprob, LOWEST) for entry in entries],
            "top_logprobs": [self._top(entry) for entry in entries],
            "text_offset": offsets,
        }

    def _top(self, entry: TokenLogprobs) -> dict[str, float]:
        """Return the top tokens and the sampled token, which OpenAI's API always includes."""
        pairs = (*entry.top, (entry.token, entry.logprob))
        return {self._text(token): max(logprob, LOWEST) for token, logprob in pairs}

    def _text(self, token: int) -> str:
        return self._tokenizer.token_bytes(token).decode("utf-8", "replace")
