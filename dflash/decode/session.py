"""One text being continued: what was asked, what came of it."""

import secrets
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import ExitStack
from time import perf_counter

import numpy as np

from dflash.decode.drafting.drafter import Drafter, DrafterState, Nothing, Plain, Strategy
from dflash.decode.prompt_ids import PromptIds
from dflash.decode.recoveries.base import RecoveryState
from dflash.decode.recoveries.intervention import Intervention
from dflash.decode.sampling.history import History
from dflash.decode.sampling.params import Sampling, check_whole
from dflash.decode.sampling.processors import LogitsProcessor, Penalties
from dflash.decode.sampling.sampler import Sampler, TokenLogprobs
from dflash.decode.snapshot import SessionSnapshot
from dflash.decode.special_tokens import SpecialTokens
from dflash.decode.step import Step
from dflash.decode.verify import Accepted
from dflash.decode.view import Recorder
from dflash.errors import RequestError
from dflash.model.state.sequence_state import Snapshot, State

__all__ = ["Observer", "Session", "Step", "TokenLogprobs"]

Observer = Callable[["Session", list[int]], int | None]
"""Called once a step with the new tokens, before they are text; see `Session`."""

_GREEDY, _PLAIN, _NOTHING, _NO_SPECIAL_TOKENS = Sampling(), Plain(), Nothing(), SpecialTokens()


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
        Tokens that end the text; the one that does is the last of `output_ids`.
    processors : sequence of LogitsProcessor
        Asked at every node of every draft, after penalties and bias.
    observer : callable, optional
        ``observer(session, tokens)`` is called in the engine's thread once a step, before the new tokens are text. It
        returns None, or how many of *these* to keep: the session ends within this step with the reason ``"stop"``, and the
        others never were. An exception in it ends this session alone. What a recovery holds back, it sees later.
    prefix : SessionSnapshot or Snapshot, optional
        Of a session, or of a state, that has read the first tokens of this prompt, not the last; it stays the caller's.
    special_tokens : SpecialTokens
        Ids that recoveries have to know.
    recorder : Recorder, optional
        Is told every pick.
    group : hashable, optional
        Sessions of equal groups, such as the choices of one request, wait in one line; the lines take turns to start a
        session. None is a line of its own.

    Attributes
    ----------
    token_ids : list of int
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
    draft_vocab_steps : Counter of int
        In how many steps guesses of a GPU were made from so many tokens of a large vocabulary.
    n_prefilled : int
        Prompt tokens read; all but the last one are read before the first token is picked.
    drafter : Drafter
        Who guesses now.
    recovery_states : list of RecoveryState
        Recoveries that watch.
    forced_ids : tuple of int
        Tokens that follow now, whatever the model says.
    held_steps : list of Step
        Not handed on yet.
    prompt_snapshot : Snapshot or None
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
        processors: Sequence[LogitsProcessor] = (),
        observer: Observer | None = None,
        prefix: SessionSnapshot | Snapshot | None = None,
        special_tokens: SpecialTokens = _NO_SPECIAL_TOKENS,
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
        self.eos, self.observer, self.special_tokens, self.recorder = frozenset(eos), observer, special_tokens, recorder
        self.group = group
        self.drafter: Drafter = strategy.drafter
        self.seed = secrets.randbits(32) if sampling.seed is None else sampling.seed
        self.history = History(given.token_ids)
        self.token_ids, self.n_prompt = self.history.token_ids, self.history.n_prompt
        self.sampler = Sampler(sampling, self.seed, processors)
        self.wants_logprobs = sampling.logprobs is not None
        if any(isinstance(processor, Penalties) for processor in self.sampler.processors):
            self.history.count()
        self.max_length = 0
        self.state: State | None = None
        self.drafter_state: DrafterState | None = None
        self.cancelled = False
        self.finish_reason: str | None = None
        self.stop_token: int | None = None
        self.error: Exception | None = None
        self.logprobs: list[TokenLogprobs] = []
        self.steps: list[Step] = []
        self.interventions: list[Intervention] = []
        self.warnings: list[str] = []
        self.draft_vocab_steps: Counter[int] = Counter()
        self.recovery_states: list[RecoveryState] = []
        self.forced_ids: tuple[int, ...] = ()
        self.held_steps: list[Step] = []
        self.prompt_snapshot: Snapshot | None = None
        self.n_prefilled = 0
        self.added_at: float | None = None
        self.started_at: float | None = None
        self.first_token_at: float | None = None
        self.ended_at: float | None = None

    @property
    def prompt_ids(self) -> list[int]:
        """What was given."""
        return self.token_ids[: self.n_prompt]

    @property
    def output_ids(self) -> list[int]:
        """What was produced so far, the end token included."""
        return self.token_ids[self.n_prompt :]

    @property
    def n_tokens(self) -> int:
        """How many tokens were produced."""
        return len(self.token_ids) - self.n_prompt

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
    def has_emitted(self) -> bool:
        """Whether any token was handed on."""
        return any(step.tokens for step in self.steps)

    def snapshot(self) -> SessionSnapshot:
        """Remember what was read, for other sessions to begin with; see `SessionSnapshot`."""
        return SessionSnapshot(self)

    def append(self, accepted: Accepted) -> None:
        """Make tokens text."""
        for token in accepted.tokens:
            self.history.push(token)
        if self.wants_logprobs:
            self.logprobs += accepted.logprobs
        if accepted.tokens and self.first_token_at is None:
            self.first_token_at = perf_counter()
        if accepted.finish == "stop" and accepted.tokens and accepted.tokens[-1] in self.eos:
            self.stop_token = accepted.tokens[-1]

    def record(self, step: Step) -> None:
        """Tell the recorder, if there is one, of a step and of those before it that were held back."""
        if self.recorder is not None:
            for each in (*self.held_steps, step):
                self.recorder.told(each)

    def force(self, tokens: Sequence[int]) -> None:
        """Let these tokens follow, and go on without guesses."""
        self.forced_ids = tuple(tokens)
        drafter_state, self.drafter = self.drafter_state, _NOTHING
        self.drafter_state = _NOTHING.start(self, None)
        if drafter_state is not None:
            drafter_state.close()

    def rewind(self) -> None:
        """Be where nothing was produced yet, to go on without guesses; steps and their times stay."""
        self.history.cut(self.n_prompt)
        self.logprobs.clear()
        self.forced_ids, self.first_token_at, self.drafter = (), None, _NOTHING
        self.held_steps = [step._replace(tokens=[], rows=(), accepted=0, injected=0) for step in self.held_steps]

    def discard_prompt_snapshot(self) -> None:
        """Nobody will go back to where the prompt ends."""
        origin, self.prompt_snapshot = self.prompt_snapshot, None
        if origin is not None:
            origin.close()

    def release(self) -> None:
        """Give back all that the session holds, even if a part of it fails; harmless if done before."""
        drafter_state, state = self.drafter_state, self.state
        self.drafter_state = self.state = None
        with ExitStack() as parts:
            if state is not None:
                parts.callback(state.close)
            parts.callback(self.discard_prompt_snapshot)
            if drafter_state is not None:
                parts.callback(drafter_state.close)

    def __repr__(self) -> str:
        where = self.finish_reason or ("waiting" if self.state is None else "running")
        return f"Session({self.n_prompt} + {self.n_tokens} tokens, {self.strategy!r}, {where})"


def _check_prefix(prefix: SessionSnapshot | Snapshot, ids: np.ndarray) -> None:
    n = prefix.length
    if n >= len(ids):
        raise RequestError(f"prefix: has read {n} tokens, must leave the last of the prompt's {len(ids)}")
    if isinstance(prefix, SessionSnapshot) and prefix.token_ids != ids[:n].tolist():
        at = next(i for i, token in enumerate(prefix.token_ids) if token != ids[i])
        raise RequestError(f"prefix: has read token {prefix.token_ids[at]} at {at}, where the prompt has {ids[at]}")
