"""Common parts of OpenAI's two response formats: bodies, chunks and the end of a stream."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from dflash.generation.completion import Completion, Delta
from dflash.json_types import JsonMapping, JsonObject
from dflash.serve.dialect import AnswerHead, ServerEvent
from dflash.serve.http_errors import Problem
from dflash.serve.openai.usage import remarks, usage
from dflash.serve.requests import Options

LOWEST = -9999.0
"""Smallest log-probability in responses; stands for minus infinity, which JSON does not have."""

DONE = ServerEvent("[DONE]")
"""Terminal event of every stream."""


class ChunkFormat:
    """Base of the formats of one response: body, chunks, and the end of a stream.

    kind, chunk_kind: field ``object`` of a whole response, and of a chunk.
    """

    def __init__(self, head: AnswerHead, options: Options, *, prefix: str, kind: str, chunk_kind: str) -> None:
        self._head = {"id": f"{prefix}-{head.id}", "object": "", "created": head.created, "model": head.model}
        self._head |= head.fingerprint_field
        self._options, self._kind, self._chunk_kind = options, kind, chunk_kind
        self._with_logprobs, self._tokenizer = options.logprobs is not None, head.tokenizer
        self._completions = head.completions
        self._open: dict[int, None] = {}
        self._n_sent = 0

    @abstractmethod
    def _whole_choice(self, index: int, completion: Completion) -> JsonObject:
        """Return a choice of a response that is not streamed."""

    def _chunk(self, choice: JsonMapping, **more: Any) -> ServerEvent:
        """Return a chunk with one choice."""
        return ServerEvent({**self._head, "object": self._chunk_kind, "choices": [choice], **self._usage(), **more})

    def delta(self, index: int, delta: Delta) -> Iterator[ServerEvent]:
        """Yield the chunks of a step of choice `index`."""
        raise NotImplementedError

    @abstractmethod
    def nothing(self, index: int) -> ServerEvent:
        """Return a chunk of choice `index` that adds nothing."""

    def _usage(self) -> JsonObject:
        """Return the token counts of a chunk: those so far, null, or none, as the request wants."""
        if self._options.continuous_usage:
            prompt = sum(completion.session.n_prompt for completion in self._completions[:: self._options.n])
            counts = {"prompt_tokens": prompt, "completion_tokens": self._n_sent, "total_tokens": prompt + self._n_sent}
            return {"usage": counts}
        return {"usage": None} if self._options.include_usage else {}

    def _ids(self, index: int, tokens: Sequence[int], *, with_prompt: bool) -> JsonObject:
        """Return the token ids of a choice; empty unless the request wants them."""
        if not self._options.token_ids:
            return {}
        prompt = {"prompt_token_ids": self._completions[index].session.prompt_ids} if with_prompt else {}
        return {**prompt, "token_ids": list(tokens)}

    def _token_text(self, token: int) -> str:
        """Return the name of a token in log-probabilities."""
        if self._options.tokens_as_ids:
            return f"token_id:{token}"
        return self._tokenizer.token_bytes(token).decode("utf-8", "replace")

    def _prompt_logprobs(self, index: int) -> list[JsonObject | None]:
        """Return the log-probabilities of a prompt in vLLM's form: for each token but the first an object by token id."""
        found: list[JsonObject | None] = [None]
        for entry in self._completions[index].session.scored_prompt:
            ranked: dict[int, tuple[float, int | None]] = {
                token: (logprob, 1 + place) for place, (token, logprob) in enumerate(entry.top)
            }
            ranked[entry.token] = (entry.logprob, entry.rank)
            found.append(
                {
                    str(token): {"logprob": max(logprob, LOWEST), "rank": rank, "decoded_token": self._token_text(token)}
                    for token, (logprob, rank) in ranked.items()
                }
            )
        return found

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

    def whole(self, completions: Sequence[Completion]) -> JsonObject:
        """Return the body of a response that is not streamed."""
        return {
            **self._head,
            "object": self._kind,
            "choices": [self._whole_choice(index, completion) for index, completion in enumerate(completions)],
            "usage": usage(completions, self._options.n),
            **remarks(completions),
        }
