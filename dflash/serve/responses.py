"""Response formats of OpenAI's chat completions and completions, whole and streamed."""

from collections.abc import Sequence
from typing import Any, Protocol

from dflash.decode.session import TokenLogprobs
from dflash.generation.completion import Completion, Delta
from dflash.model.text.tokenizer import Tokenizer

LOWEST = -9999.0
"""Smallest log-probability in responses; stands for minus infinity, which JSON does not have."""


class ResponseShape(Protocol):
    """Format of the choices of one API."""

    whole_kind: str
    chunk_kind: str

    def opening(self, index: int) -> dict[str, Any] | None:
        """Return the choice of the first chunk, before any text; None for no such chunk."""
        ...

    def piece(self, index: int, delta: Delta) -> dict[str, Any]:
        """Return the choice of a chunk with new text."""
        ...

    def ending(self, index: int, reason: str | None) -> dict[str, Any]:
        """Return the choice of the last chunk, with the finish reason."""
        ...

    def whole(self, index: int, completion: Completion, logprobs: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """Return the choice of a response that is not streamed."""
        ...


class ChatShape:
    """Format of chat completions."""

    whole_kind, chunk_kind = "chat.completion", "chat.completion.chunk"

    def __init__(self, tokenizer: Tokenizer, *, logprobs: bool) -> None:
        self._tokenizer, self._with_logprobs = tokenizer, logprobs

    def opening(self, index: int) -> dict[str, Any]:
        """Return a chunk with the role."""
        return self._chunk(index, {"role": "assistant", "content": ""})

    def piece(self, index: int, delta: Delta) -> dict[str, Any]:
        """Add text."""
        return {**self._chunk(index, {"content": delta.text}), "logprobs": self._logprobs(delta.logprobs)}

    def ending(self, index: int, reason: str | None) -> dict[str, Any]:
        """Say why it ended."""
        return self._chunk(index, {}, reason)

    def whole(self, index: int, completion: Completion, logprobs: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """Return the whole message."""
        return {
            "index": index,
            "message": {"role": "assistant", "content": completion.text},
            "logprobs": self._logprobs(logprobs),
            "finish_reason": completion.session.finish_reason,
        }

    def _chunk(self, index: int, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}

    def _logprobs(self, entries: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
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

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        raw = self._tokenizer.token_bytes(token)
        return {"token": raw.decode("utf-8", "replace"), "logprob": max(logprob, LOWEST), "bytes": list(raw)}


class CompletionShape:
    """Format of completions; `echoes` are the prompts as text, for requests with ``echo``."""

    whole_kind = chunk_kind = "text_completion"

    def __init__(self, tokenizer: Tokenizer, *, logprobs: bool, echoes: Sequence[str] | None = None) -> None:
        self._tokenizer, self._with_logprobs, self._echoes = tokenizer, logprobs, echoes
        self._offsets: dict[int, int] = {}

    def opening(self, index: int) -> dict[str, Any] | None:
        """Return a chunk with the prompt for ``echo``, else None."""
        return self._choice(index, self._echoes[index]) if self._echoes else None

    def piece(self, index: int, delta: Delta) -> dict[str, Any]:
        """Add text."""
        return self._choice(index, delta.text, self._logprobs(index, delta.logprobs))

    def ending(self, index: int, reason: str | None) -> dict[str, Any]:
        """Say why it ended."""
        return self._choice(index, "", reason=reason)

    def whole(self, index: int, completion: Completion, logprobs: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """Return the whole text."""
        text = self._echoes[index] + completion.text if self._echoes else completion.text
        return self._choice(index, text, self._logprobs(index, logprobs), completion.session.finish_reason)

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


def interventions(completions: Sequence[Completion]) -> dict[str, list[str]]:
    """Return the interventions of recoveries, one sentence each; empty if there were none."""
    done = [str(each) for completion in completions for each in completion.session.interventions]
    return {"interventions": done} if done else {}


def usage(completions: Sequence[Completion], n: int) -> dict[str, Any]:
    """Return token counts. A prompt counts once for its `n` choices; draft tokens are OpenAI's prediction tokens.

    Parameters
    ----------
    completions : sequence of Completion
        Completions of all choices, grouped by prompt.
    n : int
        Choices per prompt.
    """
    prompt = sum(completion.session.n_prompt for completion in completions[::n])
    output = sum(completion.session.n_tokens for completion in completions)
    counts: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    drafted, accepted = (
        sum(getattr(completion.session, name) for completion in completions) for name in ("n_drafted", "n_accepted")
    )
    cached = sum(completion.session.n_cached for completion in completions[::n])
    if cached:
        counts["prompt_tokens_details"] = {"cached_tokens": cached}
    if not drafted:
        return counts
    details = {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": drafted - accepted}
    return {**counts, "completion_tokens_details": details}
