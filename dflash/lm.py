"""A loaded model, ready to write: the face that notebooks and scripts see."""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from dflash.decode.drafters import Strategy
from dflash.decode.drafters.diagnostics import warnings_of
from dflash.decode.drafting.drafter import Drafter
from dflash.decode.registry import check_no_draft_options
from dflash.decode.sampling.params import Sampling
from dflash.decode.trace import Dump
from dflash.errors import ContextOverflow, RequestError
from dflash.generation import prompts, scoring
from dflash.generation.completion import Answer
from dflash.generation.engine_thread import Worker
from dflash.generation.prompts import Prompt
from dflash.generation.recovery.names import Language, Recover, recoveries
from dflash.generation.stream import Stream, finish_all
from dflash.kernels.profile import profile
from dflash.model import describe
from dflash.model.load import Loaded

T = TypeVar("T")


class LM:
    """A model and the loop that writes with it. `dflash.load` makes one.

    All methods may be called from any thread; what is asked at the same time shares each forward.

    Parameters
    ----------
    loaded : Loaded
        The model and what goes with it; from here on it belongs to the LM.
    worker : Worker
        The thread that runs it.

    Attributes
    ----------
    file : GGUFFile
        Where the weights are.
    model : Model
        Ids in, logits out; to be called through `call` only.
    tokenizer : Tokenizer
        Text to ids and back.
    template : ChatTemplate or None
        Messages to text.
    """

    def __init__(self, loaded: Loaded, worker: Worker) -> None:
        self.file, self.model = loaded.file, loaded.model
        self.tokenizer, self.template = loaded.tokenizer, loaded.template
        self._device = {"no_gpu": loaded.trouble} if loaded.trouble else {}
        self._worker = worker
        self._scoring = threading.Lock()
        self._finalizer = finalize(self, self._worker.close)

    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        strategy: Strategy | Drafter | str | None = None,
        recover: Recover = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = (),
        stream: bool = False,
        dump: str | os.PathLike[str] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **sampling: Any,
    ) -> Any:
        """Continue a text or answer messages.

        Parameters
        ----------
        prompt : str, list of dict, list of int, or a list of those
            A text or its ids are continued as they are; messages (``{"role": ..., "content": ...}``) go through the model's
            chat template. Several prompts are worked on together, each with the result that it has alone.
        tools : list of dict, optional
            JSON schemas of functions, in OpenAI's form; the template shows them to the model.
        strategy : Strategy, Drafter or str, optional
            How tokens are guessed; `Plain()` if None. A name as ``"ddtree:22"`` stands for one (see
            `dflash.decode.registry`).
            Never changes the text.
        recover : str, Recovery or sequence of these, optional
            What may step in where the text goes wrong, besides the recoveries of the strategy: names as
            ``"empty,stall,loop,min:8"``, or objects, as `dflash.generation.recovery.tool_stall.Stall` with phrases of your
            own. None asks the environment (see `dflash.generation.recovery.names`).
        max_tokens : int, optional
            Limit of new tokens; None goes on to the end token or the end of the context.
        stop : str or sequence of str, optional
            The text ends before the first of these.
        stream : bool
            Return the `Stream` of one prompt instead of waiting for its end.
        dump : str or path, optional
            Write down step by step how tokens are guessed and picked, a JSON object a line; see `dflash.decode.trace`.
        chat_template_kwargs : dict, optional
            Settings of the template, as ``{"enable_thinking": False}``.
        **sampling
            Fields of `Sampling`: ``temperature`` (0: always the likeliest token), ``top_k``, ``top_p``, ``min_p``,
            ``repetition_penalty``, ``presence_penalty``, ``frequency_penalty``, ``logit_bias``, ``seed``, ``logprobs``
            (how many of the likeliest tokens to report at each place; 0 for the picked one alone).

        Returns
        -------
        Generation, list of Generation or Stream
            One for one prompt, a list for a list.

        Raises
        ------
        RequestError
            If an argument is of the wrong kind or out of range; the message names it.
        ModelError
            If the strategy needs what can't be loaded or does not go with this model.
        ContextOverflow
            If a prompt is longer than the context.
        TemplateError
            If the template refuses the messages, or there is none.
        EngineFailed
            If the engine has ended after a failure; load the model in a new process then.
        DFlashError
            In a forked process, and from the engine's own thread (an observer, a processor, a recorder, `call`).
        """
        check_no_draft_options(sampling)
        self._worker.check_caller()
        several, is_list = prompts.split(prompt)
        options = Sampling(**sampling)
        chosen = Strategy.of(strategy)
        for recovery in recoveries(recover, Language(self.tokenizer, self.template, tools or ())):
            chosen |= recovery
        settings = {"tools": tools, "settings": chat_template_kwargs}
        answers = [
            Answer(
                self.tokenizer,
                prompts.encode(one, self.tokenizer, self.template, **settings),
                sampling=options,
                strategy=chosen,
                max_tokens=max_tokens,
                stop=(stop,) if isinstance(stop, str) else stop or (),
            )
            for one in several
        ]
        if stream and is_list:
            raise RequestError("stream=True takes one prompt: open a stream for each of several")
        self._worker.prepare(chosen)
        if dump is not None:
            file = Dump(dump, name=lambda token: self.tokenizer.decode([token]))
            for answer in answers:
                answer.session.recorder = file.recorder()
        if stream:
            return Stream(self._worker, answers[0])
        generations = finish_all(self._worker, answers)
        return generations if is_list else generations[0]

    def prepare(self, strategy: Strategy | Drafter | str) -> None:
        """Load what a strategy needs, so that the first text with it does not wait; harmless if done before.

        Parameters
        ----------
        strategy : Strategy, Drafter or str
            As in `generate`.

        Raises
        ------
        RequestError
            If there is no such strategy.
        ModelError
            If it needs what can't be loaded or does not go with this model.
        """
        self._worker.prepare(Strategy.of(strategy))

    def stream(self, prompt: Prompt, **arguments: Any) -> Stream:
        """Write step by step.

        Parameters
        ----------
        prompt : str, list of dict or list of int
            As in `generate`.
        **arguments
            As in `generate`.

        Returns
        -------
        Stream
            Iterator of `Delta` (``text``, ``logprobs``, ``step``); prompt chunks are steps without text. ``close()`` breaks
            off, ``generation`` is all of it so far.

        Raises
        ------
        RequestError, ContextOverflow, TemplateError
            As `generate` does.
        """
        return self.generate(prompt, stream=True, **arguments)

    def encode(self, prompt: Prompt, **template: Any) -> list[int]:
        """Turn a text, or messages through the template, into ids; `template` are its settings."""
        return prompts.encode(prompt, self.tokenizer, self.template, settings=template)

    def logits(self, tokens: str | Sequence[int]) -> NDArray[np.float32]:
        """Return what the model expects after each token of a given text.

        Parameters
        ----------
        tokens : sequence of int or str
            T ids, or a text of that many.

        Returns
        -------
        float32 (T, V)
            Row t is about the token after ``tokens[t]``. On a CPU each row has the bits that decoding there would have; on a
            GPU it is rounded otherwise.

        Raises
        ------
        RequestError
            If there are no tokens or one is not in the vocabulary.
        ContextOverflow
            If there are more than fit the context.
        """
        self._worker.check_caller()
        with self._scoring:
            return scoring.logits(self._worker, self.model, self._ids(tokens))

    def log_probabilities(self, tokens: str | Sequence[int]) -> NDArray[np.float64]:
        """Return the natural log-probability that the model gives each token of a text but the first; see `logits`."""
        self._worker.check_caller()
        with self._scoring:
            return scoring.log_probabilities(self._worker, self.model, self._ids(tokens))

    def perplexity(self, text: str | Sequence[int]) -> float:
        """Return how many equally likely tokens the model wavers between, on average over a text.

        Parameters
        ----------
        text : str or sequence of int
            Of at least 2 tokens.

        Returns
        -------
        float
            ``exp(-mean(log p(token | those before)))``; memory does not grow with the text beyond its KV cache.

        Raises
        ------
        RequestError
            If there are fewer than 2 tokens or one is not in the vocabulary.
        ContextOverflow
            If there are more than fit the context.
        """
        return float(np.exp(-self.log_probabilities(text).mean()))

    def info(self) -> dict[str, Any]:
        """Tell what the model is and what it takes to run it; see `dflash.model.describe`."""
        pools = self.model.pools
        about = describe.overview(self.file, kv=pools.kv, threads=self.model.threads, device=self.model.device)
        about["device"] |= self._device
        if self.model.device == "cuda":
            about["device"]["launches"] = {str(n): launches for n, launches in self.model.launches.items()}
        about["pools"] = {
            "pages": pools.pages,
            "free_pages": pools.free_pages,
            "slots": pools.slots,
            "free_slots": pools.free_slots,
        }
        about["warnings"] = warnings_of(self.model)
        return about

    @property
    def context(self) -> int:
        """Tokens that a text may have."""
        return self.model.config.context

    def call(self, function: Callable[[], T]) -> T:
        """Run something that uses the model, between two steps of the loop, in the thread that owns it.

        Parameters
        ----------
        function : callable
            Takes nothing; what it returns is returned. It can't use the methods of this LM, which would wait for it.
        """
        return self._worker.call(function)

    @contextmanager
    def profile(self) -> Iterator[dict[str, float]]:
        """Sum up the seconds that each op takes until the block ends; yields op to seconds."""
        with profile() as seconds:
            yield seconds

    def close(self) -> None:
        """Break off whatever runs and end the thread; the LM takes no more work."""
        self._finalizer()

    def _ids(self, tokens: str | Sequence[int]) -> Sequence[int]:
        ids = self.tokenizer.encode(tokens) if isinstance(tokens, str) else tokens
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
