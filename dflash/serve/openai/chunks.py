"""Common parts of OpenAI's two response formats: bodies, chunks and the end of a stream."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dflash.generation.completion import Completion
from dflash.serve.dialect import AnswerHead, ServerEvent
from dflash.serve.http_errors import Problem
from dflash.serve.openai.usage import interventions, usage
from dflash.serve.requests import Options

LOWEST = -9999.0
"""Smallest log-probability in responses; stands for minus infinity, which JSON does not have."""

DONE = ServerEvent("[DONE]")
"""Terminal event of every stream."""


class ChunkFormat:
    """Base of the formats of one response: body, chunks, and the end of a stream.

    Parameters
    ----------
    prefix : str
        Beginning of the response's id.
    kind, chunk_kind : str
        Field ``object`` of a whole response, and of a chunk.
    """

    def __init__(self, head: AnswerHead, options: Options, *, prefix: str, kind: str, chunk_kind: str) -> None:
        self._head = {"id": f"{prefix}-{head.id}", "object": "", "created": head.created, "model": head.model}
        self._head |= head.fingerprint_field
        self._options, self._kind, self._chunk_kind = options, kind, chunk_kind
        self._tail = {"usage": None} if options.include_usage else {}
        self._with_logprobs, self._tokenizer = options.logprobs is not None, head.tokenizer
        self._completions = head.completions
        self._open: dict[int, None] = {}

    @abstractmethod
    def _whole_choice(self, index: int, completion: Completion) -> dict[str, Any]:
        """Return a choice of a response that is not streamed."""

    def _chunk(self, choice: Mapping[str, Any], **more: Any) -> ServerEvent:
        """Return a chunk with one choice."""
        return ServerEvent({**self._head, "object": self._chunk_kind, "choices": [choice], **self._tail, **more})

    def closing(self, completions: Sequence[Completion]) -> Iterator[ServerEvent]:
        """Yield the chunk with token counts, if the request wants it, and the terminal event."""
        if self._options.include_usage:
            counts = usage(completions, self._options.n)
            yield ServerEvent({**self._head, "object": self._chunk_kind, "choices": [], "usage": counts})
        yield DONE

    def failure(self, problem: Problem) -> Iterator[ServerEvent]:
        """Yield the error object and the terminal event."""
        yield ServerEvent(problem.body())
        yield DONE

    def whole(self, completions: Sequence[Completion]) -> dict[str, Any]:
        """Return the body of a response that is not streamed."""
        return {
            **self._head,
            "object": self._kind,
            "choices": [self._whole_choice(index, completion) for index, completion in enumerate(completions)],
            "usage": usage(completions, self._options.n),
            **interventions(completions),
        }
