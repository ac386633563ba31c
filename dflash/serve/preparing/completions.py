"""Completions of a request: one for each choice of each prompt."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from dflash.decode.drafting.drafter import Strategy
from dflash.decode.grammar.matcher import Grammar
from dflash.errors import RequestError
from dflash.generation.assembly import EncodedRequest
from dflash.generation.completion import Completion
from dflash.generation.grammar.params import GrammarParams
from dflash.generation.messages.fields import FieldError
from dflash.generation.prompts import checked_stop_ids
from dflash.generation.recovery.names import Language
from dflash.json_types import JsonMapping
from dflash.model.text.chat_template import ChatTemplate
from dflash.model.text.tokenizer import Tokenizer
from dflash.serve.limits import MAX_PROMPT_LOGPROBS, MAX_REPORTED, Limits
from dflash.serve.preparing.prompts import prompt_ids
from dflash.serve.requests import ChatRequest, CompletionRequest, Options


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A request whose prompts are tokenized.

    conversation: name of the conversation, see `dflash.serve.parsing.session_id.session_id`.
    offered_tools_only: calls of functions that the request does not offer are text.
    cache_salt: separates states of the prefix cache, see `dflash.serve.parsing.session_id.cache_salt`.
    """

    request: ChatRequest | CompletionRequest
    prompts: Sequence[list[int]]
    tokenizer: Tokenizer
    template: ChatTemplate | None
    conversation: str | None = None
    grammars: Sequence[Grammar | None] | None = None
    warnings: Sequence[str] = ()
    offered_tools_only: bool = False
    cache_salt: str = ""

    @classmethod
    def of(
        cls, request: ChatRequest | CompletionRequest, tokenizer: Tokenizer, template: ChatTemplate | None, limits: Limits
    ) -> "ReadRequest":
        """Tokenize the prompts of a request."""
        prompts = prompt_ids(request, tokenizer, template, limits.context, limits.prompt_tokens)
        options = request.options
        n, top = options.n, options.prompt_logprobs
        n_tokens, most = n * sum(map(len, prompts)), limits.prompt_tokens
        if n_tokens > most:
            raise FieldError("n", f"{n} choices take {n_tokens} prompt tokens, at most {most} are allowed in one request")
        if top is not None and (n_entries := n_tokens * (1 + top)) > MAX_PROMPT_LOGPROBS:
            field = "logprobs" if isinstance(request, CompletionRequest) and request.echo else "prompt_logprobs"
            message = f"{n_tokens} prompt tokens with {top} likeliest ones each take {n_entries} log-probabilities"
            raise FieldError(field, f"{message}, at most {MAX_PROMPT_LOGPROBS} are allowed in one answer")
        if options.token_ids and n_tokens > MAX_PROMPT_LOGPROBS:
            message = f"{n_tokens} prompt tokens, at most {MAX_PROMPT_LOGPROBS} can be sent back"
            raise FieldError("return_token_ids", message)
        with _named():
            checked_stop_ids(options.stop_token_ids, tokenizer.n_vocab)
        request = replace(request, options=_with_bounded_logprobs(request.options, n * len(prompts), limits.context))
        return cls(request, prompts, tokenizer, template)

    @property
    def language(self) -> Language:
        """Tools and texts that recoveries are built from."""
        return Language(self.tokenizer, self.template, self._tools, self.request.grammar.tool_choice)

    @property
    def _tools(self) -> Sequence[JsonMapping]:
        return self.request.tools if isinstance(self.request, ChatRequest) else ()

    @property
    def is_constrained(self) -> bool:
        """True if the request may have a grammar, which takes time to compile."""
        wanted = self.request.grammar
        return wanted != GrammarParams(tool_choice="none") and (
            wanted != GrammarParams(tool_choice=wanted.tool_choice) or wanted.must_call or any(map(_is_strict, self._tools))
        )

    def with_grammars(self) -> "ReadRequest":
        """Compile the grammars of the request."""
        with _named():
            grammars, warnings = self._encoded.grammars()
            return replace(self, grammars=grammars, warnings=warnings)

    def completions(self, strategy: Strategy) -> list[Completion]:
        """Return one completion for each choice; choices of a prompt share its ids and all settings except the seed."""
        options, encoded = self.request.options, self._encoded
        sampling = replace(options.sampling, logprobs=options.logprobs)
        is_single = isinstance(self.request, ChatRequest) and not self.request.parallel_tool_calls
        with _named():
            # without grammars nothing has to be compiled, only checked
            grammars, warnings = encoded.grammars() if self.grammars is None else (self.grammars, self.warnings)
            return encoded.completions(
                grammars,
                [sampling.with_seed(_seed(options.sampling.seed, number)) for number in range(options.n)],
                strategy=strategy,
                max_tokens=options.max_tokens,
                stop=options.stop,
                max_calls=1 if is_single else None,
                conversation=self.conversation,
                cache_salt=self.cache_salt,
                ignore_eos=options.ignore_eos,
                stop_token_ids=options.stop_token_ids,
                prompt_logprobs=options.prompt_logprobs,
                skip_special=options.skip_special,
                warnings=warnings,
                prefix_cache=options.use_prefix_cache,
                priority=options.priority,
            )

    @property
    def _encoded(self) -> EncodedRequest:
        prompts = [(ids, isinstance(self.request, ChatRequest)) for ids in self.prompts]
        return EncodedRequest(prompts, self.language, self.request.grammar, offered_tools_only=self.offered_tools_only)


@contextmanager
def _named() -> Iterator[None]:
    """Raise errors about an argument as errors about the field of that name."""
    try:
        yield
    except RequestError as error:
        field, _, reason = str(error).partition(": ")
        if type(error) is not RequestError or not reason or " " in field:
            raise
        raise FieldError(field, reason) from error


def _is_strict(tool: JsonMapping) -> bool:
    inner = tool.get("function", tool)
    return isinstance(inner, Mapping) and bool(inner.get("strict"))


def _with_bounded_logprobs(options: Options, n: int, context: int) -> Options:
    """Return options whose `n` sequences report at most `MAX_REPORTED` log-probabilities.

    A request without `max_tokens`, or with more than the context holds, gets what is left; others are refused.
    """
    if options.logprobs is None:
        return options
    most = max(MAX_REPORTED // (n * (1 + options.logprobs)), 1)
    if options.max_tokens is None or options.max_tokens > context:
        return replace(options, max_tokens=most) if most < context else options
    if options.max_tokens > most:
        raise FieldError(
            "max_tokens",
            f"is {options.max_tokens}, at most {most} are allowed with {n} choices and {1 + options.logprobs} "
            "log-probabilities of each token",
        )
    return options


def _seed(seed: int | None, number: int) -> int | None:
    """Return the seed of a choice: the given one plus the number of the choice."""
    return (seed + number) % 2**64 if seed is not None and number else seed
