"""A request in progress: a decoding session, its detokenizer and its parser."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple
from weakref import WeakMethod

import numpy as np

from dflash.decode.drafting.drafter import Strategy
from dflash.decode.grammar.matcher import Grammar
from dflash.decode.output_part import ReasoningCount, prompt_reasoning
from dflash.decode.prompt_ids import PromptIds
from dflash.decode.recoveries.min_tokens import MinTokens
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session, Step, TokenLogprobs
from dflash.errors import RequestError
from dflash.generation.parsers import CallEnd, ContentDelta, Event, OutputFormat, ParsedOutput, ReasoningDelta
from dflash.generation.parsers.events import add_events
from dflash.generation.parsers.output_parser import TextReader
from dflash.generation.recovery.special_tokens import special_tokens_of
from dflash.generation.result import Generation
from dflash.model.text.detokenizer import TextStream
from dflash.model.text.spelled_tokens import ROLE_STARTS
from dflash.model.text.tokenizer import Tokenizer

_PROMPT_END = 8
"""Prompt tokens that a parser sees: enough for an opening tag and a line break, even if the tag is no single token."""


class Delta(NamedTuple):
    """Text and log-probabilities that one step added to a completion.

    text: new text, final; often empty.
    logprobs: log-probabilities of the tokens that `text` completes, if requested; the end token has none.
    events: reasoning, content and tool calls that the text completes; see `dflash.generation.parsers`.
    scored_prompt: log-probabilities of prompt tokens that the step has prefilled, if requested; the first token has none.
    """

    text: str
    logprobs: Sequence[TokenLogprobs]
    step: Step
    events: Sequence[Event] = ()
    scored_prompt: Sequence[TokenLogprobs] = ()

    @property
    def content(self) -> str:
        """The visible part of `text`, as `Generation.content`: final, without reasoning, calls and tags."""
        return "".join(event.text for event in self.events if isinstance(event, ContentDelta))

    @property
    def reasoning(self) -> str:
        """The reasoning in `text`, without its tags."""
        return "".join(event.text for event in self.events if isinstance(event, ReasoningDelta))


class Completion:
    """A completion in progress.

    prompt: prompt token ids; completions of the same prompt may share one `PromptIds`.
    max_tokens: maximum number of output tokens; None is the rest of the context.
    stop: stop strings: the text ends before the first one, also inside reasoning and tool calls. They are ignored until the
        strategy's `MinTokens` is reached.
    output_format: formats of reasoning and tool calls; if None, all text is content.
    prefix_cache: use the engine's prefix cache, if it has one.
    max_calls: number of tool calls after which the output ends, with the reason ``"stop"``. Needs an output format.
    conversation: name of the conversation, a hint for the prefix cache.
    warnings: notes about the request for the caller, such as keywords of a schema that are not enforced.
    ignore_eos: continue after end tokens, up to `max_tokens`.
    stop_token_ids: tokens that end the output beside the end tokens; the one that does has no text.
    prompt_logprobs: number of likeliest tokens to report at each position of the prompt, beside the prompt's own token.
    skip_special: leave control tokens out of the text.
    pieces: text that each step added.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: Sequence[int] | PromptIds,
        *,
        sampling: Sampling,
        strategy: Strategy | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        output_format: OutputFormat | None = None,
        grammar: Grammar | None = None,
        prefix_cache: bool = True,
        max_calls: int | None = None,
        conversation: str | None = None,
        cache_salt: str = "",
        ignore_eos: bool = False,
        stop_token_ids: Sequence[int] = (),
        prompt_logprobs: int | None = None,
        skip_special: bool = True,
        warnings: Sequence[str] = (),
        priority: int = 0,
    ) -> None:
        if ignore_eos and grammar is not None:
            raise RequestError("ignore_eos: can't be combined with a constraint, at whose end the output ends; drop one")
        observe = WeakMethod(self._observe)  # weak: no reference cycle between the completion and its session

        def observer(session: Session, tokens: list[int]) -> int | None:
            observed = observe()
            assert observed is not None, "the completion outlives its session's steps"
            return observed(session, tokens)

        prompt = PromptIds.of(prompt)
        special_tokens = special_tokens_of(tokenizer)
        parser, shown = None, frozenset[int]()
        if output_format is not None:
            thinking = prompt_reasoning(prompt.token_ids, special_tokens.think, tokenizer.eos_ids)
            prompt_end = tokenizer.decode(prompt.array[-_PROMPT_END:].tolist())
            parser = partial(output_format.parser, prompt_end, thinking=thinking)
            shown = output_format.tokens(tokenizer)
            special_tokens = output_format.with_calls(special_tokens, tokenizer)
        self._ends = frozenset((*(() if ignore_eos else tokenizer.eos_ids), *stop_token_ids))
        self.session = Session(
            prompt,
            sampling=sampling,
            strategy=Strategy.of(strategy),
            max_tokens=max_tokens,
            eos=tokenizer.eos_ids,
            stop_ids=self._ends,
            grammar=grammar,
            observer=observer,
            special_tokens=special_tokens,
            detokenize=tokenizer.decode,
            boundaries=role_boundaries(tokenizer, prompt),
            use_prefix_cache=prefix_cache,
            conversation=conversation,
            reader=None if parser is None else lambda: TextReader(tokenizer, parser(), shown),
            cache_salt=cache_salt,
            prompt_logprobs=prompt_logprobs,
            priority=priority,
        )
        self.session.warnings += warnings
        self.pieces: list[str] = []
        self.events: list[Event] = []
        self._parser = None if parser is None else parser()
        self._reasoning, self._n_counted = ReasoningCount(), 0
        least = max((part.n for part in self.session.strategy.recoveries if isinstance(part, MinTokens)), default=0)
        self._tokenizer = tokenizer
        self._stream = TextStream(tokenizer, stop=stop, skip_special=skip_special, shown=shown, min_tokens=least)
        self._new, self._new_events = list[str](), list[Event]()  # since the last delta
        self._max_calls, self._n_calls = max_calls, 0
        self._n_reported = self._n_scored = 0

    @property
    def text(self) -> str:
        """Text so far."""
        return "".join(self.pieces)

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the text; None if none did."""
        return self._stream.stopped

    @property
    def output(self) -> ParsedOutput | None:
        """Reasoning, content and tool calls so far; None without an output format."""
        return None if self._parser is None else ParsedOutput.of(self.events)

    @property
    def logprobs(self) -> Sequence[TokenLogprobs]:
        """Log-probabilities of the tokens that `text` consists of, if requested."""
        return self.session.logprobs[: self._n_reported]

    @property
    def n_reasoning(self) -> int:
        """Output tokens of the reasoning so far, with those that open and close it; 0 if there is no text in it."""
        return self._reasoning.n

    def delta(self, step: Step) -> Delta:
        """Return what `step` added. Called once per step, in order, with the session's latest step."""
        if step.finish is not None:
            self._read([self._stream.finish()])
            if self._parser is not None:
                rest = self._parser.finish(cut=step.finish != "stop")
                # calls that are known at the end only may be more than were allowed
                most = self._max_calls
                add_events(self._new_events, (e for e in rest if most is None or getattr(e, "index", -1) < most))
        text, events, self._new, self._new_events = "".join(self._new), self._new_events, [], []
        self.pieces.append(text)
        self.events += events
        logprobs = self.session.logprobs[self._n_reported : self._stream.n_tokens]
        scored = self.session.scored_prompt[self._n_scored :]
        self._n_reported, self._n_scored = self._n_reported + len(logprobs), self._n_scored + len(scored)
        return Delta(text, logprobs, step, events, scored)

    def result(self) -> Generation:
        """Return the result so far."""
        return Generation.of(self.session, self.pieces, self._tokenizer, self.output)

    def _observe(self, _: Session, tokens: list[int]) -> int | None:
        """Detokenize new ids one by one, so that a stop string ends every strategy at the same token, and parse their text.

        Text is parsed token by token where reasoning tokens or calls are counted, else that of all tokens together.
        """
        texts: list[str] = []
        for index, token in enumerate(tokens):
            if token in self._ends:
                break
            texts.append(self._stream.push((token,)))
            parser = self._parser
            if parser is not None and parser.may_reason:
                before, n = parser.part, self._stream.n_tokens
                self._read(texts)
                self._reasoning.add(before, parser.part, n - self._n_counted)
                texts, self._n_counted = [], n
            if self._max_calls is not None:
                self._read(texts)
                texts = []
            if self._stream.stopped is not None or self._has_all_calls():
                self._read(texts)
                return index + 1
        self._read(texts)
        return None

    def _has_all_calls(self) -> bool:
        """Return True if `max_calls` calls have ended."""
        if self._max_calls is None or self._parser is None:
            return False
        return self._n_calls >= self._max_calls and not self._parser.awaits_closing

    def _read(self, texts: list[str]) -> None:
        """Parse new text."""
        text = "".join(texts)
        if text:
            self._new.append(text)
            events = [ContentDelta(text)] if self._parser is None else self._parser.push(text)
            self._n_calls += sum(isinstance(event, CallEnd) for event in events)
            add_events(self._new_events, events)


def role_boundaries(tokenizer: Tokenizer, prompt: PromptIds) -> tuple[int, ...]:
    """Return up to three numbers of tokens before a message of a chat prompt begins.

    They are the end of the first message, which other conversations share (system prompt and tools), the beginning of the
    last message before the answer, and that of the answer itself. Each snapshot copies the recurrent state, so few are
    worth more than one for each message. A text without messages has none.
    """
    start = next((token for token in map(tokenizer.id_of, ROLE_STARTS) if token is not None), None)
    if start is None:
        return ()
    starts = np.flatnonzero(prompt.array == start).tolist()
    return tuple(sorted({*starts[1:2], *starts[-2:]} - {0}))
