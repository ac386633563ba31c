"""One text being continued: what was asked, what came of it."""

import secrets
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from dflash.decode.drafter import Drafting
from dflash.decode.history import History
from dflash.decode.picker import Picker, TokenLogprobs
from dflash.decode.rules import Penalties, Rule
from dflash.decode.sampling import Sampling
from dflash.decode.strategy import Plain, Strategy
from dflash.decode.verify import Kept
from dflash.errors import DFlashError, RequestError
from dflash.model.state import Snapshot, State

__all__ = ["Observer", "Session", "Step", "TokenLogprobs"]

Observer = Callable[["Session", list[int]], int | None]
"""Called once a step with the new tokens, before they are text; see `Session`."""

_INT32_MAX = 2**31 - 1
_GREEDY, _PLAIN = Sampling(), Plain()


class Step(NamedTuple):
    """One change of a session.

    Parameters
    ----------
    tokens : list of int
        New text; empty for a chunk of the prompt, and where a session ends without a token.
    drafted, accepted : int
        How many tokens were guessed; the first `accepted` of `tokens` were right guesses, the rest is the target's own.
    prefilled : int
        Prompt tokens that were read.
    batch : int
        Rows of all sessions in that forward.
    propose, forward, verify, commit : float
        Seconds; the first two for all sessions of the step together.
    finish : str or None
        Why the session ended, in the step that ended it.
    """

    tokens: list[int]
    drafted: int = 0
    accepted: int = 0
    prefilled: int = 0
    batch: int = 0
    propose: float = 0.0
    forward: float = 0.0
    verify: float = 0.0
    commit: float = 0.0
    finish: str | None = None


class Session:
    """A prompt, how to go on from it, and what came of it. Made anywhere, then given to `Engine.add`.

    Parameters
    ----------
    prompt : sequence of int
        At least one token.
    sampling : Sampling
        How tokens are picked.
    strategy : Strategy
        How they are guessed.
    max_tokens : int, optional
        Most tokens to produce; None goes on until the context, or all the memory there is, is full.
    eos : iterable of int
        Tokens that end the text; the one that does is the last of `tokens`.
    processors : sequence of Rule
        Asked at every node of every draft, after penalties and bias.
    observer : callable, optional
        ``observer(session, tokens)`` is called in the engine's thread once a step, before the new tokens are text. It
        returns None, or how many of *these* to keep: the session ends within this step with the reason ``"stop"``, and the
        others never were. An exception in it ends this session alone.
    prefix : Snapshot, optional
        Of a state that has read the first tokens of this prompt, not the last; it stays the caller's.

    Attributes
    ----------
    text : list of int
        Prompt and produced tokens; to be read only.
    seed : int
        The one given, or one that was drawn.
    finish_reason : str or None
        ``"stop"`` (an end token or the observer), ``"length"``, ``"cancelled"`` or ``"error"``, with `error`.
    stop_token : int or None
        The end token that ended it.
    logprobs : list of TokenLogprobs
        One a produced token, where the sampling asks for them.
    steps : list of Step
        All that happened, in order.
    n_read : int
        Prompt tokens read; all but the last one are read before the first token is picked.
    added_at, started_at, first_token_at, ended_at : float or None
        When that was, by `time.perf_counter`.

    Raises
    ------
    RequestError
        If the prompt is empty or holds no ids, or `max_tokens` is negative.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        *,
        sampling: Sampling = _GREEDY,
        strategy: Strategy = _PLAIN,
        max_tokens: int | None = None,
        eos: Iterable[int] = (),
        processors: Sequence[Rule] = (),
        observer: Observer | None = None,
        prefix: Snapshot | None = None,
    ) -> None:
        self.ids = _ids(prompt)
        if max_tokens is not None and max_tokens < 0:
            raise RequestError(f"max_tokens: must be 0 or more, got {max_tokens}")
        if prefix is not None and prefix.length >= len(self.ids):
            raise RequestError(
                f"prefix: has read {prefix.length} tokens, must leave the last of the prompt's {len(self.ids)}"
            )
        self.sampling, self.strategy, self.max_tokens, self.prefix = sampling, strategy, max_tokens, prefix
        self.eos, self.observer = frozenset(eos), observer
        self.seed = secrets.randbits(32) if sampling.seed is None else sampling.seed
        self.history = History(self.ids.tolist())
        self.text, self.n_prompt = self.history.text, self.history.n_prompt
        self.picker = Picker(sampling, self.seed, processors)
        self.wants_logprobs = sampling.logprobs is not None
        if any(isinstance(rule, Penalties) for rule in self.picker.rules):
            self.history.count()
        self.limit = 0
        self.state: State | None = None
        self.drafting: Drafting | None = None
        self.cancelled = False
        self.finish_reason: str | None = None
        self.stop_token: int | None = None
        self.error: Exception | None = None
        self.logprobs: list[TokenLogprobs] = []
        self.steps: list[Step] = []
        self.n_read = 0
        self.added_at: float | None = None
        self.started_at: float | None = None
        self.first_token_at: float | None = None
        self.ended_at: float | None = None

    @property
    def prompt(self) -> list[int]:
        """What was given."""
        return self.text[: self.n_prompt]

    @property
    def tokens(self) -> list[int]:
        """What was produced so far, the end token included."""
        return self.text[self.n_prompt :]

    @property
    def n_tokens(self) -> int:
        """How many tokens were produced."""
        return len(self.text) - self.n_prompt

    @property
    def finished(self) -> bool:
        """Whether nothing more will come."""
        return self.finish_reason is not None

    @property
    def n_drafted(self) -> int:
        """Tokens guessed."""
        return sum(step.drafted for step in self.steps)

    @property
    def n_accepted(self) -> int:
        """Tokens guessed right."""
        return sum(step.accepted for step in self.steps)

    def cancel(self) -> None:
        """End at the next border of a step or of a chunk of the prompt; from any thread."""
        self.cancelled = True

    def observe(self, kept: Kept) -> Kept:
        """Let the observer cut what `verify` found."""
        n = self.observer(self, kept.tokens) if self.observer is not None else None
        if n is None:
            return kept
        if not 0 <= n <= len(kept.tokens):
            raise DFlashError(f"the observer was shown {len(kept.tokens)} tokens and wants to keep {n!r}")
        return Kept(kept.tokens[:n], kept.rows[:n], min(kept.accepted, n), kept.logprobs[:n], "stop")

    def take(self, kept: Kept) -> None:
        """Make tokens text."""
        for token in kept.tokens:
            self.history.push(token)
        if self.wants_logprobs:
            self.logprobs += kept.logprobs
        if kept.tokens and self.first_token_at is None:
            self.first_token_at = perf_counter()
        if kept.finish == "stop" and kept.tokens and kept.tokens[-1] in self.eos:
            self.stop_token = kept.tokens[-1]

    def release(self) -> None:
        """Give back all that the session holds; harmless if done before."""
        drafting, state = self.drafting, self.state
        self.drafting = self.state = None
        try:
            if drafting is not None:
                drafting.close()
        finally:
            if state is not None:
                state.close()

    def __repr__(self) -> str:
        where = self.finish_reason or ("waiting" if self.state is None else "running")
        return f"Session({self.n_prompt} + {self.n_tokens} tokens, {self.strategy!r}, {where})"


def _ids(prompt: Any) -> np.ndarray:
    """`prompt` as int32, or a RequestError."""
    try:
        ids = np.asarray(prompt)
    except ValueError:
        raise RequestError("prompt: must be one sequence of token ids, got nested ones") from None
    if ids.ndim != 1 or not len(ids):
        raise RequestError(f"prompt: must hold at least one token, got shape {ids.shape}")
    if ids.dtype.kind not in "iu":
        raise RequestError(f"prompt: must hold token ids, got {ids.dtype}")
    if ids.min() < 0 or ids.max() > _INT32_MAX:
        bad = next(i for i, token in enumerate(ids.tolist()) if not 0 <= token <= _INT32_MAX)
        raise RequestError(f"prompt: token {ids[bad]} at {bad} is not in the vocabulary")
    return ids.astype(np.int32)
