"""Responses of ``/v1/completions``."""

from collections.abc import Iterator, Sequence

from dflash.decode.session import TokenLogprobs
from dflash.generation.completion import Completion, Delta
from dflash.json_types import JsonObject
from dflash.serve.dialect import AnswerHead, ServerEvent
from dflash.serve.openai.chunks import LOWEST, ChunkFormat
from dflash.serve.openai.usage import remarks
from dflash.serve.requests import CompletionRequest


class CompletionFormat(ChunkFormat):
    """Format of one response to a completion request.

    A stream has no chunk before its first token, unless the request wants the prompt back: programs that measure servers
    take the first chunk with a choice for the first token. Empty lines keep the connection meanwhile.

    With ``echo``, log-probabilities have an entry for each token of the prompt, null for the first one, and one for each
    output token, the end token included: evaluation programs count them.
    """

    def __init__(self, request: CompletionRequest, head: AnswerHead) -> None:
        super().__init__(head, request.options, prefix="cmpl", kind="text_completion", chunk_kind="text_completion")
        texts = (each if isinstance(each, str) else head.tokenizer.decode(each) for each in request.prompts)
        self._echoes = [text for text in texts for _ in range(request.options.n)] if request.echo else []
        self._open = dict.fromkeys(range(request.options.n * len(request.prompts)))
        self._offsets: dict[int, int] = {}
        self._n_reported: dict[int, int] = {}

    def opening(self) -> Iterator[ServerEvent]:
        """Yield a chunk with the prompt for each choice, if ``echo`` or token ids are wanted."""
        for index in self._open if self._echoes or self._options.token_ids else ():
            choice = self._choice(index, self._echoes[index] if self._echoes else "", self._first_logprob(index))
            yield self._chunk({**choice, **self._ids(index, (), with_prompt=True)})

    def delta(self, index: int, delta: Delta) -> Iterator[ServerEvent]:
        """Yield a chunk with text, and one with the finish reason. Prompt tokens of ``echo`` have chunks without text."""
        tokens = delta.step.tokens
        self._n_sent += len(tokens)
        if delta.scored_prompt and self._with_logprobs and self._echoes:
            yield self._chunk(self._choice(index, "", self._logprobs(index, delta.scored_prompt)))
        entries = [*delta.logprobs]
        self._n_reported[index] = self._n_reported.get(index, 0) + len(entries)
        if delta.step.finish is not None:
            entries += self._end_logprob(index, self._n_reported[index])
        ids = self._ids(index, tokens, with_prompt=False) if tokens else {}
        if delta.text or entries or ids:
            yield self._chunk({**self._choice(index, delta.text, self._logprobs(index, entries)), **ids})
        if delta.step.finish is not None:
            del self._open[index]
            ending = self._choice(index, "", reason=delta.step.finish)
            yield self._chunk(ending, **remarks([self._completions[index]]))

    def nothing(self, index: int) -> ServerEvent:
        """Return a chunk of a choice that adds nothing."""
        return self._chunk(self._choice(index, ""))

    def heartbeat(self) -> ServerEvent:
        """Return an empty line."""
        return ServerEvent(None)

    def _whole_choice(self, index: int, completion: Completion) -> JsonObject:
        text = self._echoes[index] + completion.text if self._echoes else completion.text
        session, entries = completion.session, [*completion.logprobs]
        logprobs = self._first_logprob(index)
        if logprobs is not None:
            entries = [*session.scored_prompt, *entries, *self._end_logprob(index, len(entries))]
        more = self._logprobs(index, entries)
        if logprobs is not None and more is not None:
            more = {name: logprobs[name] + more[name] for name in more}
        choice = self._choice(index, text, more, session.finish_reason)
        if self._options.prompt_logprobs is not None and not (self._echoes and self._with_logprobs):
            choice["prompt_logprobs"] = self._prompt_logprobs(index)
        return {**choice, **self._ids(index, session.output_ids, with_prompt=True)}

    def _choice(self, index: int, text: str, logprobs: JsonObject | None = None, reason: str | None = None) -> JsonObject:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def _first_logprob(self, index: int) -> JsonObject | None:
        """Return the entry of the prompt's first token, which has no log-probability; None without ``echo``."""
        if not (self._with_logprobs and self._echoes):
            return None
        text = self._token_text(int(self._completions[index].session.prompt_array[0]))
        self._offsets[index] = len(text)
        return {"tokens": [text], "token_logprobs": [None], "top_logprobs": [None], "text_offset": [0]}

    def _end_logprob(self, index: int, n_reported: int) -> Sequence[TokenLogprobs]:
        """Return the entry of the end token with ``echo``; it has no text."""
        session = self._completions[index].session
        if not self._echoes or session.stop_token is None or n_reported >= len(session.logprobs):
            return ()
        return session.logprobs[-1:]

    def _logprobs(self, index: int, entries: Sequence[TokenLogprobs]) -> JsonObject | None:
        if not self._with_logprobs:
            return None
        texts = [self._token_text(entry.token) for entry in entries]
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
        return {self._token_text(token): max(logprob, LOWEST) for token, logprob in pairs}
