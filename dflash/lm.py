"""A loaded model: the API of notebooks and scripts."""

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from dflash.decode.drafters import Strategy
from dflash.decode.drafting.diagnostics import warnings_of
from dflash.decode.drafting.drafter import Drafter
from dflash.decode.prefix_cache import PrefixCache
from dflash.decode.prefix_cache.saved_sessions import SavedSessions
from dflash.decode.registry import check_no_draft_options
from dflash.decode.sampling.params import Sampling
from dflash.decode.trace import Dump
from dflash.errors import ContextOverflow, RequestError
from dflash.generation import prompts, scoring
from dflash.generation.assembly import EncodedRequest
from dflash.generation.engine_thread import EngineThread
from dflash.generation.grammar.params import GrammarParams
from dflash.generation.prompts import Prompt
from dflash.generation.recovery.names import Language, Recover, with_recoveries
from dflash.generation.recovery.tool_call_prefix import ToolChoice
from dflash.generation.result import Generation
from dflash.generation.stream import Stream, finish_all
from dflash.json_types import JsonMapping, JsonObject
from dflash.kernels.gpu.device import gpu_name
from dflash.kernels.profile import profile
from dflash.model import describe
from dflash.model.loading.target import Loaded

T = TypeVar("T")


class LM:
    """A model and the thread that decodes with it. `dflash.load` makes one.

    All methods may be called from any thread. Concurrent requests are batched into the same forwards.

    Attributes
    ----------
    file : GGUFFile
        File that holds the weights.
    model : Model
        Maps token ids to logits. Use it only inside `call`.
    tokenizer : Tokenizer
        Converts text to token ids and back.
    template : ChatTemplate or None
        Converts messages to text.
    """

    def __init__(self, loaded: Loaded, engine_thread: EngineThread) -> None:
        self.file, self.model = loaded.file, loaded.model
        self.tokenizer, self.template = loaded.tokenizer, loaded.template
        self._device = {"no_gpu": loaded.trouble} if loaded.trouble else {}
        self._engine_thread, self._gpu = engine_thread, loaded.gpu
        self._saved_sessions = SavedSessions(loaded, engine_thread.engine.prefix_cache, engine_thread.call)
        self._scoring = threading.Lock()
        self._finalizer = finalize(self, self._engine_thread.close)

    @overload
    def generate(self, prompt: Prompt, *, stream: Literal[True], **arguments: Any) -> Stream: ...

    @overload
    def generate(self, prompt: Prompt, *, stream: Literal[False] = False, **arguments: Any) -> Generation: ...

    @overload
    def generate(
        self, prompt: Sequence[Prompt], *, stream: Literal[False] = False, **arguments: Any
    ) -> list[Generation]: ...

    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        *,
        tools: Sequence[JsonMapping] | None = None,
        tool_choice: ToolChoice = None,
        response_format: JsonMapping | None = None,
        regex: str | None = None,
        lark: str | None = None,
        grammar: str | None = None,
        reasoning_parser: str | None = None,
        tool_parser: str | None = None,
        offered_tools_only: bool = False,
        strategy: Strategy | Drafter | str | None = None,
        recover: Recover = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = (),
        stream: bool = False,
        dump: str | os.PathLike[str] | None = None,
        prefix_cache: bool = True,
        chat_template_kwargs: JsonMapping | None = None,
        ignore_eos: bool = False,
        stop_token_ids: Sequence[int] = (),
        prompt_logprobs: int | None = None,
        continue_final_message: bool = False,
        **sampling: Any,
    ) -> Generation | list[Generation] | Stream:
        """Continue a text or answer messages.

        Parameters
        ----------
        prompt : str, list of dict, list of int, or a list of those
            Text or token ids are continued as they are. Messages (``{"role": ..., "content": ...}``) go through the model's
            chat template. Several prompts are decoded as a batch; each gets the same result as in a batch of one.
        tools : list of dict, optional
            JSON schemas of functions in OpenAI's format, passed to the chat template. Calls of these functions are parsed.
        tool_choice, response_format, regex, lark, grammar : optional
            Constraints on the output after its reasoning, as ``tool_choice="required"`` or ``regex="yes|no"``; see
            `dflash.generation.grammar.params.GrammarParams`. They need ``pip install 'dflash-gguf[grammar]'``.
        reasoning_parser, tool_parser : str, optional
            Format of reasoning (``"qwen3"``) and of tool calls (``"qwen3-coder"``, ``"hermes"``), or ``"none"``. If None,
            the chat template determines them for messages; the output of other prompts is not parsed.
        offered_tools_only : bool
            Calls of functions that are not among `tools` are text. Otherwise they are calls, as in vLLM.
        strategy : Strategy, Drafter or str, optional
            Drafter, draft shape and recoveries, or a name as ``"ddtree:22"`` (see `dflash.decode.registry`); `Plain()` if
            None. The drafter never changes the output.
        recover : str, Recovery or sequence of these, optional
            Recoveries in addition to those of the strategy: names as ``"empty,stall,loop,min:8"``, or objects, as
            `dflash.generation.recovery.tool_stall.Stall` with your own phrases. None reads the environment variables of
            `dflash.generation.recovery.names`.
        max_tokens : int, optional
            Maximum number of output tokens; None is the rest of the context.
        stop : str or sequence of str, optional
            Stop strings: the text ends before the first one.
        stream : bool
            Return a `Stream` instead of waiting for the result. For one prompt only.
        dump : str or path, optional
            File for a trace of all steps: drafting and sampling as one JSON object per line; see `dflash.decode.trace`.
        prefix_cache : bool
            Use the prefix cache, if the model was loaded with one.
        chat_template_kwargs : dict, optional
            Variables of the chat template, as ``{"enable_thinking": False}``.
        ignore_eos : bool
            Continue after end tokens, up to `max_tokens`, as benchmarks want it.
        stop_token_ids : sequence of int
            Token ids that end the output beside the model's end tokens.
        prompt_logprobs : int, optional
            Number of likeliest tokens to report at each position of the prompt, beside the prompt's own token; see
            `Generation.prompt_logprobs`. With ``max_tokens=0`` nothing else is computed.
        continue_final_message : bool
            Continue the last message, which is the assistant's and has text, instead of opening a new turn.
        **sampling
            Fields of `Sampling`: ``temperature`` (0 is greedy), ``top_k``, ``top_p``, ``min_p``,
            ``repetition_penalty``, ``presence_penalty``, ``frequency_penalty``, ``logit_bias``, ``seed``, ``logprobs``
            (number of top tokens to report at each position; 0 reports only the sampled token).

        Returns
        -------
        Generation, list of Generation or Stream
            A result for one prompt, a list of results for a list of prompts. `Generation` has ``text`` as the model wrote
            it, and its parts ``content``, ``reasoning`` and ``tool_calls``.

        Raises
        ------
        RequestError
            If an argument is of the wrong kind or out of range; the message names it.
        ModelError
            If a file of the strategy can't be loaded or does not match this model.
        ContextOverflow
            If a prompt is longer than the context.
        TemplateError
            If the chat template refuses the messages, or the model has none.
        EngineFailed
            If the engine has stopped after a failure. Load the model in a new process then.
        DFlashError
            In a forked process, and from the engine's own thread (an observer, a processor, a recorder, `call`).
        """
        check_no_draft_options(sampling)
        self._engine_thread.check_caller()
        several, is_list = prompts.split(prompt)
        options = Sampling.of_keywords(sampling, self.generate)
        language = Language(self.tokenizer, self.template, tools or (), tool_choice)
        chosen = with_recoveries(Strategy.of(strategy), recover, language)
        constraints = GrammarParams(
            response_format=response_format, regex=regex, lark=lark, grammar=grammar, tool_choice=tool_choice
        )
        encode = partial(
            prompts.encode,
            tokenizer=self.tokenizer,
            template=self.template,
            tools=tools,
            settings=chat_template_kwargs,
            continue_final_message=continue_final_message,
        )
        request = EncodedRequest(
            [(encode(one), prompts.is_messages(one)) for one in several],
            language,
            constraints,
            reasoning_parser,
            tool_parser,
            offered_tools_only,
        )
        grammars, warnings = request.grammars()
        completions = request.completions(
            grammars,
            [options],
            strategy=chosen,
            max_tokens=max_tokens,
            stop=(stop,) if isinstance(stop, str) else stop or (),
            prefix_cache=prefix_cache,
            warnings=warnings,
            ignore_eos=ignore_eos,
            stop_token_ids=prompts.checked_stop_ids(stop_token_ids, self.model.n_vocab),
            prompt_logprobs=prompt_logprobs,
        )
        if stream and is_list:
            raise RequestError("stream=True takes one prompt: open a stream for each of several")
        self._engine_thread.prepare(chosen)
        if dump is not None:
            file = Dump(dump)
            for completion in completions:
                completion.session.recorder = file.recorder()
        if stream:
            return Stream(self._engine_thread, completions[0])
        generations = finish_all(self._engine_thread, completions)
        return generations if is_list else generations[0]

    def prepare(self, strategy: Strategy | Drafter | str) -> None:
        """Load the files and kernels of a strategy, so that its first request does not wait. Safe to call again.

        Parameters
        ----------
        strategy : Strategy, Drafter or str
            As in `generate`.

        Raises
        ------
        RequestError
            If the strategy is not known.
        ModelError
            If a file of the strategy can't be loaded or does not match this model.
        """
        self._engine_thread.prepare(Strategy.of(strategy))

    def stream(self, prompt: Prompt, **arguments: Any) -> Stream:
        """Generate and return an iterator over the steps.

        Parameters
        ----------
        prompt : str, list of dict or list of int
            As in `generate`.
        **arguments
            As in `generate`.

        Returns
        -------
        Stream
            Iterator of `Delta`: ``content`` and ``reasoning`` are new text, ``text`` is both with their tags; ``events``
            also hold tool calls (`dflash.generation.parsers.events`), ``step`` and ``logprobs`` the record. Prompt chunks
            are steps without text. ``close()`` cancels the request, ``generation`` is the result so far.

        Raises
        ------
        RequestError, ContextOverflow, TemplateError
            As `generate` does.
        """
        return self.generate(prompt, stream=True, **arguments)

    def encode(self, prompt: Prompt, *, tools: Sequence[JsonMapping] | None = None, **template: Any) -> list[int]:
        """Convert text, or messages and tools, to token ids; `template` are variables of the chat template."""
        return prompts.encode(prompt, self.tokenizer, self.template, tools=tools, settings=template)

    def logits(self, tokens: str | Sequence[int]) -> NDArray[np.float32]:
        """Return the logits after each token of a given text.

        Parameters
        ----------
        tokens : sequence of int or str
            T token ids, or text of T tokens.

        Returns
        -------
        float32 (T, V)
            Row t are the logits of the token after ``tokens[t]``. On a CPU the rows are bit-identical to those of decoding;
            on a GPU their rounding differs.

        Raises
        ------
        RequestError
            If there are no tokens or one is not in the vocabulary.
        ContextOverflow
            If there are more than fit the context.
        """
        self._engine_thread.check_caller()
        with self._scoring:
            return scoring.logits(self._engine_thread, self.model, self._ids(tokens))

    def hidden_states(
        self, tokens: str | Sequence[int], layers: int | Sequence[int] | None = None
    ) -> dict[int, NDArray[np.float32]]:
        """Return the residual stream after some layers, at each token of a given text.

        Parameters
        ----------
        tokens : sequence of int or str
            T token ids, or text of T tokens.
        layers : int or sequence of int, optional
            Layers, 0 to L - 1; None is all of these. Layer i is ``hidden_states[i + 1]`` of Transformers, without its final
            norm. L is the output of the final norm, which MTP heads and the LM head read.

        Returns
        -------
        dict of int to float32 (T, D)
            Row t is the residual stream at ``tokens[t]`` after the layer. Bits are as in `logits`.

        Raises
        ------
        RequestError
            If a layer is not one of the model, or there are no tokens or one is not in the vocabulary.
        ContextOverflow
            If there are more tokens than fit the context.
        """
        self._engine_thread.check_caller()
        layers = range(self.model.config.n_layers) if layers is None else layers
        with self._scoring:
            return scoring.hidden_states(self._engine_thread, self.model, self._ids(tokens), layers)

    def log_probabilities(self, tokens: str | Sequence[int]) -> NDArray[np.float64]:
        """Return the natural log-probability of each token of a text except the first; see `logits`."""
        self._engine_thread.check_caller()
        with self._scoring:
            return scoring.log_probabilities(self._engine_thread, self.model, self._ids(tokens))

    def perplexity(self, text: str | Sequence[int]) -> float:
        """Return the perplexity of a text.

        Parameters
        ----------
        text : str or sequence of int
            Text of at least 2 tokens.

        Returns
        -------
        float
            ``exp(-mean(log p(token | tokens before)))``. Needs no memory beyond the KV cache of the text.

        Raises
        ------
        RequestError
            If there are fewer than 2 tokens or one is not in the vocabulary.
        ContextOverflow
            If there are more than fit the context.
        """
        return float(np.exp(-self.log_probabilities(text).mean()))

    def save_session(
        self,
        name: str | os.PathLike[str],
        prompt: Prompt,
        *,
        strategy: Strategy | Drafter | str | None = None,
        chat_template_kwargs: JsonMapping | None = None,
    ) -> int:
        """Save the state after a prompt in a file, with which `load_session` spares a later process its prefill.

        The prompt is prefilled first, unless the prefix cache holds it.

        Parameters
        ----------
        name : str or path
            A `str` is a name in the folder `prefix_cache_folder`, of letters, digits and ``._-``; a `pathlib.Path` is any
            file. A file of that name is replaced; the size limit of the folder does not count it.
        prompt : str, list of dict or list of int
            As in `generate`; ``[*generation.prompt, *generation.tokens]`` saves a prompt and its completion.
        strategy : Strategy, Drafter or str, optional
            As in `generate`: the state of its drafter is saved, too.
        chat_template_kwargs : dict, optional
            As in `generate`.

        Returns
        -------
        int
            Number of tokens in the state: all of the prompt but the last, or up to 16 fewer if the cache held them.

        Raises
        ------
        RequestError
            If the model has no prefix cache, the name is not valid, the state does not fit the cache or the file can't be
            written. Other errors are those of `generate`.
        """
        path, chosen = self._saved_sessions.check(name), Strategy.of(strategy)
        ids = self.encode(prompt, **(chat_template_kwargs or {}))
        self.generate(ids, max_tokens=1, strategy=chosen)
        return self._saved_sessions.save(path, ids, chosen.drafter)

    def load_session(self, name: str | os.PathLike[str], *, strategy: Strategy | Drafter | str | None = None) -> int:
        """Load a state that `save_session` has saved into the prefix cache. Prompts that continue it begin there.

        Parameters
        ----------
        name : str or path
            As in `save_session`.
        strategy : Strategy, Drafter or str, optional
            Its drafter continues with its saved state. With other drafters that need a state, such as `DFlash` and `MTP`,
            prompts begin with the part of the saved prompt that these can do without, often none.

        Returns
        -------
        int
            Number of tokens in the state.

        Raises
        ------
        NotFound
            If there is no such file.
        FormatError
            If the file is damaged.
        RequestError
            If the model has no prefix cache, the name is not valid, the state belongs to another model, KV type, device or
            version of dflash, or it does not fit the cache.
        """
        path, chosen = self._saved_sessions.check(name), Strategy.of(strategy)
        self._engine_thread.prepare(chosen)
        return self._saved_sessions.load(path, chosen.drafter)

    def info(self) -> JsonObject:
        """Return a description of the model, its memory and its device; see `dflash.model.describe`."""
        model, pools = self.model, self.model.pools
        device = model.device if self._gpu is None else gpu_name(self._gpu)
        about = describe.overview(self.file, kv=pools.kv, pending=pools.pending, threads=model.threads, device=device)
        about["device"] |= self._device
        if model.device == "cuda":
            about["device"]["prefill"] = model.config.prefill
            about["device"]["launches"] = {str(n): launches for n, launches in model.launches.items()}
        about["pools"] = {name: getattr(pools, name) for name in ("pages", "free_pages", "slots", "free_slots")}
        if self.prefix_cache is not None:
            about["prefix_cache"] = self.prefix_cache.stats._asdict()
            if self.prefix_cache.disk is not None:
                about["prefix_cache"]["disk"] = self.prefix_cache.disk.stats._asdict()
        about["warnings"] = warnings_of(self.model)
        return about

    @property
    def prefix_cache(self) -> PrefixCache | None:
        """Saved states of earlier prompts and answers; None if the model was loaded without. Clear it inside `call`."""
        return self._engine_thread.engine.prefix_cache

    @property
    def context(self) -> int:
        """Maximum tokens of a sequence, prompt and output together."""
        return self.model.config.context

    def call(self, function: Callable[[], T]) -> T:
        """Run a function in the engine thread, between two steps.

        Parameters
        ----------
        function : callable
            Takes no arguments; its result is returned. It must not call methods of this LM, which would deadlock.
        """
        return self._engine_thread.call(function)

    def profile(self) -> AbstractContextManager[dict[str, float]]:
        """Measure the seconds of each op inside a ``with`` block; yields a dict of op name to seconds."""
        return profile()

    def close(self) -> None:
        """Cancel all requests and end the engine thread. The LM accepts no more requests."""
        self._finalizer()

    def _ids(self, tokens: str | Sequence[int]) -> Sequence[int]:
        ids = self.tokenizer.encode(tokens) if isinstance(tokens, str) else tokens
        if not hasattr(ids, "__len__"):
            raise RequestError(f"tokens: must be a text or token ids, got {ids!r:.80}")
        if len(ids) > self.context:
            raise ContextOverflow(f"the text has {len(ids)} tokens, the context holds {self.context}")
        return ids

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        config = self.model.config
        return f"LM({self.file.path.name}: {config.architecture}, {config.n_layers} layers of {config.width})"
