"""One text being continued: what was asked, what came of it."""

import secrets
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import ExitStack
from time import perf_counter

import numpy as np

from dflash.decode.drafting.drafter import Drafter, Drafting, Nothing
from dflash.decode.prompt_ids import PromptIds
from dflash.decode.recoveries.base import Intervention, Watch
from dflash.decode.sampling.history import History
from dflash.decode.sampling.params import Sampling, check_whole
from dflash.decode.sampling.processors import Penalties, Rule
from dflash.decode.sampling.sampler import Picker, TokenLogprobs
from dflash.decode.snapshot import SessionSnapshot
from dflash.decode.special_tokens import Marks
from dflash.decode.step import Recorder, Step
from dflash.decode.strategy import Plain, Strategy
from dflash.decode.verify import Kept
from dflash.errors import RequestError
from dflash.model.state.sequence_state import Snapshot, State

__all__ = ["Observer", "Session", "Step", "TokenLogprobs"]

Observer = Callable[["Session", list[int]], int | None]
"""Called once a step with the new tokens, before they are text; see `Session`."""

_GREEDY, _PLAIN, _NOTHING, _NO_MARKS = Sampling(), Plain(), Nothing(), Marks()


class Session:
    """A prompt, how to go on from it, and what came of it. Made anywhere, then given to `Engine.add`.

    Parameters
    ----------
    prompt : sequence of int or PromptIds
        At least one token. Sessions that continue the same prompt may share one `PromptIds`.
    sampling : Sampling
        How tokens are picked.
    strategy : Strategy
        How they are guessed, and what watches over it.
    max_tokens : int, optional
        Most tokens to produce; None goes on until the context, or all the memory there is, is full.
    eos : iterable of int
        Tokens that end the text; the one that does is the last of `tokens`.
    processors : sequence of Rule
        Asked at every node of every draft, after penalties and bias.
    observer : callable, optional
        ``observer(session, tokens)`` is called in the engine's thread once a step, before the new tokens are text. It
        returns None, or how many of *these* to keep: the session ends within this step with the reason ``"stop"``, and the
        others never were. An exception in it ends this session alone. What a recovery holds back, it sees later.
    prefix : SessionSnapshot or Snapshot, optional
        Of a session, or of a state, that has read the first tokens of this prompt, not the last; it stays the caller's.
    marks : Marks
        Ids that recoveries have to know.
    recorder : Recorder, optional
        Is told every pick.
    group : hashable, optional
        Sessions of equal groups, such as the choices of one request, wait in one line; the lines take turns to start a
        session. None is a line of its own.

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
        All that happened, in order. What was written in vain has no tokens.
    interventions : list of Intervention
        What recoveries did.
    warnings : list of str
        What was found wrong with how it was written; drafters add to it.
    guessed_from : Counter of int
        In how many steps guesses of a GPU were made from so many tokens of a large vocabulary.
    n_read : int
        Prompt tokens read; all but the last one are read before the first token is picked.
    drafter : Drafter
        Who guesses now.
    watches : list of Watch
        Recoveries that watch.
    forced : tuple of int
        Tokens that follow now, whatever the model says.
    held : list of Step
        Not handed on yet.
    origin : Snapshot or None
        Where the prompt ends, if a recovery may go back there.
    added_at, started_at, first_token_at, ended_at : float or None
        When that was, by `time.perf_counter`.

    Raises
    ------
    RequestError
        If the prompt is empty or holds no ids, or `max_tokens` is negative or no whole number.
    """

    def __init__(
        self,
        prompt: Sequence[int] | PromptIds,
        *,
        sampling: Sampling = _GREEDY,
        strategy: Strategy = _PLAIN,
        max_tokens: int | None = None,
        eos: Iterable[int] = (),
        processors: Sequence[Rule] = (),
        observer: Observer | None = None,
        prefix: SessionSnapshot | Snapshot | None = None,
        marks: Marks = _NO_MARKS,
        recorder: Recorder | None = None,
        group: Hashable = None,
    ) -> None:
        given = PromptIds.of(prompt)
        self.ids = given.array
        if max_tokens is not None:
            check_whole("max_tokens", max_tokens, 0)
        if prefix is not None:
            _check_prefix(prefix, self.ids)
        self.sampling, self.strategy, self.max_tokens, self.prefix = sampling, strategy, max_tokens, prefix
        self.eos, self.observer, self.marks, self.recorder = frozenset(eos), observer, marks, recorder
        self.group = group
        self.drafter: Drafter = strategy.drafter
        self.seed = secrets.randbits(32) if sampling.seed is None else sampling.seed
        self.history = History(given.token_ids)
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
        self.interventions: list[Intervention] = []
        self.warnings: list[str] = []
        self.guessed_from: Counter[int] = Counter()
        self.watches: list[Watch] = []
        self.forced: tuple[int, ...] = ()
        self.held: list[Step] = []
        self.origin: Snapshot | None = None
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

    @property
    def told(self) -> bool:
        """Whether any token was handed on."""
        return any(step.tokens for step in self.steps)

    def snapshot(self) -> SessionSnapshot:
        """Remember what was read, for other sessions to begin with; see `SessionSnapshot`."""
        return SessionSnapshot(self)

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

    def record(self, step: Step) -> None:
        """Tell the recorder, if there is one, of a step and of those before it that were held back."""
        if self.recorder is not None:
            for each in (*self.held, step):
                self.recorder.told(each)

    def force(self, tokens: Sequence[int]) -> None:
        """Let these tokens follow, and go on without guesses."""
        self.forced = tuple(tokens)
        drafting, self.drafter = self.drafting, _NOTHING
        self.drafting = _NOTHING.start(self, None)
        if drafting is not None:
            drafting.close()

    def rewind(self) -> None:
        """Be where nothing was produced yet, to go on without guesses; steps and their times stay."""
        self.history.cut(self.n_prompt)
        self.logprobs.clear()
        self.forced, self.first_token_at, self.drafter = (), None, _NOTHING
        self.held = [step._replace(tokens=[], rows=(), accepted=0, injected=0) for step in self.held]

    def forget_origin(self) -> None:
        """Nobody will go back to where the prompt ends."""
        origin, self.origin = self.origin, None
        if origin is not None:
            origin.close()

    def release(self) -> None:
        """Give back all that the session holds, even if a part of it fails; harmless if done before."""
        drafting, state = self.drafting, self.state
        self.drafting = self.state = None
        with ExitStack() as parts:
            if state is not None:
                parts.callback(state.close)
            parts.callback(self.forget_origin)
            if drafting is not None:
                parts.callback(drafting.close)

    def __repr__(self) -> str:
        where = self.finish_reason or ("waiting" if self.state is None else "running")
        return f"Session({self.n_prompt} + {self.n_tokens} tokens, {self.strategy!r}, {where})"


def _check_prefix(prefix: SessionSnapshot | Snapshot, ids: np.ndarray) -> None:
    n = prefix.length
    if n >= len(ids):
        raise RequestError(f"prefix: has read {n} tokens, must leave the last of the prompt's {len(ids)}")
    if isinstance(prefix, SessionSnapshot) and prefix.tokens != ids[:n].tolist():
        at = next(i for i, token in enumerate(prefix.tokens) if token != ids[i])
        raise RequestError(f"prefix: has read token {prefix.tokens[at]} at {at}, where the prompt has {ids[at]}")
