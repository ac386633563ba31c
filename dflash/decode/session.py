"""A session: one prompt, its settings, and the tokens produced so far."""

import secrets
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import ExitStack
from time import perf_counter

import numpy as np

from dflash.decode.drafting.drafter import Drafter, DrafterState, Nothing, Plain, Strategy
from dflash.decode.grammar.matcher import Grammar
from dflash.decode.grammar.state import GrammarState
from dflash.decode.output_part import OutputReader, SpecialTokenReader, prompt_reasoning
from dflash.decode.prompt_ids import PromptIds
from dflash.decode.recoveries.base import RecoveryState
from dflash.decode.recoveries.intervention import Intervention
from dflash.decode.sampling.history import History
from dflash.decode.sampling.params import Sampling, check_whole
from dflash.decode.sampling.processors import LogitsProcessor, Penalties
from dflash.decode.sampling.sampler import Sampler, TokenLogprobs
from dflash.decode.scheduling.preempted_state import PreemptedState
from dflash.decode.snapshot import SessionSnapshot
from dflash.decode.special_tokens import SpecialTokens
from dflash.decode.step import Step
from dflash.decode.verify import Accepted
from dflash.decode.view import Detokenize, Recorder
from dflash.errors import RequestError
from dflash.kernels.delta.state_copies import StateCopy
from dflash.model.protocols.sequence import SequenceSnapshot, SequenceState

__all__ = ["Observer", "Session", "Step", "TokenLogprobs"]

Observer = Callable[["Session", list[int]], int | None]
"""Called once a step with the new tokens, before they are appended; see `Session`."""

_GREEDY, _PLAIN, _NOTHING, _NO_SPECIAL_TOKENS = Sampling(), Plain(), Nothing(), SpecialTokens()


class Session:
    """One sequence being decoded: prompt, settings, output and state. Made in any thread, then passed to `Engine.add`.

    prompt: at least one token. Sessions that continue the same prompt may share one `PromptIds`.
    max_tokens: most tokens to produce; if None, the session ends when the context or all KV memory is full.
    eos: end tokens of the model: each ends a message, in the prompt as well.
    stop_ids: tokens that end the session; `eos` by default. The one that does is the last of `output_ids`.
    processors: called at every node of every draft, after penalties and bias.
    grammar: grammar of the output. Its end tokens must be `eos`, and among `stop_ids`.
    observer: ``observer(session, tokens)`` is called in the engine's thread once a step, before the new tokens are appended.
        It returns None, or how many of *these* to accept: then the session ends in this step with the reason ``"stop"``, and
        the other tokens are dropped. An exception in it ends this session alone. Tokens that a recovery holds back are
        passed when they are released.
    prefix: snapshot of a session or a state that holds the first tokens of this prompt, without the last. The caller owns
        it.
    special_tokens: ids with a meaning for recoveries.
    detokenize: ``detokenize(ids)`` returns the text of ids, for recoveries and recorders.
    recorder: receives every pick and every step.
    group: sessions of equal groups, such as the choices of one request, wait in one queue; the queues take turns to start a
        session. None is a queue of its own.
    boundaries: numbers of prompt tokens at which the engine's prefix cache should save the state, such as the beginnings of
        roles. The ends of prompt and session are saved too.
    use_prefix_cache: false to neither begin with a snapshot of the engine's prefix cache nor save any.
    conversation: name of the conversation that the prompt belongs to: a hint for the prefix cache.
    reader: ``reader()`` returns a new reader of the output, for recoveries. If None, special tokens tell its parts.
    cache_salt: sessions of different salts share no states of the prefix cache.
    prompt_logprobs: number of likeliest tokens whose log-probabilities are found at each position of the prompt, beside that
        of the prompt's token; None finds none. Such a session computes its whole prompt itself: it does not use the prefix
        cache.
    priority: sessions of a lower number start first, read their prompts first and keep their memory longer.
    token_ids: ids of prompt and output; must not be changed.
    seed: the given seed, or a random one.
    finish_reason: ``"stop"`` (an end token or the observer), ``"length"``, ``"cancelled"`` or ``"error"``, with `error`.
    stop_token: the end token that ended the session.
    logprobs: one for each output token, if the sampling asks for them.
    scored_prompt: one for each prefilled prompt token but the first, if `prompt_logprobs` asks for them.
    steps: emitted steps in order. Steps that a restart discarded have no tokens.
    draft_vocab_steps: number of steps by size of the draft vocabulary; empty if the drafter has one size only.
    n_prefilled: prompt tokens in the target's state; all but the last one are prefilled before the first token is picked.
        After a preemption also the output tokens in it.
    n_preempted: number of times that the session gave its memory to older ones.
    preempted_state: its state in host memory while it waits to be resumed.
    recovery_states: states of the recoveries, the innermost first.
    forced_ids: tokens that a recovery injects next, whatever the model predicts.
    held_steps: steps that a recovery holds back.
    continues: true if the prompt goes on after a whole earlier one, with whose state the session began.
    n_drafter_miss: prompt tokens of the prefix cache that were read again, since their state lacks that of the drafter.
    snapshot_at: lengths in rising order at which the prefix cache saves the state.
    prompt_snapshot: state at the end of the prompt, if a recovery may restart the session.
    added_at, started_at, first_token_at, ended_at: times by `time.perf_counter`; None until they happened.
    """

    is_reread = False
    """True for `dflash.decode.scheduling.reread.Reread`."""

    def __init__(
        self,
        prompt: Sequence[int] | PromptIds,
        *,
        sampling: Sampling = _GREEDY,
        strategy: Strategy = _PLAIN,
        max_tokens: int | None = None,
        eos: Iterable[int] = (),
        processors: Sequence[LogitsProcessor] = (),
        grammar: Grammar | None = None,
        observer: Observer | None = None,
        prefix: SessionSnapshot | SequenceSnapshot | None = None,
        special_tokens: SpecialTokens = _NO_SPECIAL_TOKENS,
        detokenize: Detokenize | None = None,
        recorder: Recorder | None = None,
        group: Hashable = None,
        boundaries: Sequence[int] = (),
        use_prefix_cache: bool = True,
        conversation: str | None = None,
        reader: Callable[[], OutputReader] | None = None,
        cache_salt: str = "",
        stop_ids: Iterable[int] | None = None,
        prompt_logprobs: int | None = None,
        priority: int = 0,
    ) -> None:
        given = PromptIds.of(prompt)
        self.prompt_array = given.array
        if max_tokens is not None:
            check_whole("max_tokens", max_tokens, 0)
        if prompt_logprobs is not None:
            check_whole("prompt_logprobs", prompt_logprobs, 0)
            if prefix is not None:
                raise RequestError("prompt_logprobs: needs the whole prompt; leave out prefix")
        if prefix is not None:
            _check_prefix(prefix, self.prompt_array)
        self.sampling, self.strategy, self.max_tokens, self.prefix = sampling, strategy, max_tokens, prefix
        self.eos, self.observer, self.special_tokens, self.recorder = frozenset(eos), observer, special_tokens, recorder
        self.stop_ids = self.eos if stop_ids is None else frozenset(stop_ids)
        self.group, self.detokenize, self._reader = group, detokenize, reader
        self.boundaries, self.conversation, self.cache_salt = boundaries, conversation, cache_salt
        self.prompt_logprobs, self.priority = prompt_logprobs, priority
        self.use_prefix_cache = use_prefix_cache and prompt_logprobs is None
        self.drafter: Drafter = strategy.drafter
        self.seed = secrets.randbits(32) if sampling.seed is None else sampling.seed
        self.history = History(given.token_ids)
        self.token_ids, self.n_prompt = self.history.token_ids, self.history.n_prompt
        self.grammar = self.history.grammar = None if grammar is None else GrammarState(grammar)
        self.sampler = Sampler(sampling, self.seed, processors)
        verifier, drafts = strategy.verifier, type(strategy.drafter) is not Nothing
        verifier_state = verifier.start(self.seed, greedy=sampling.greedy)
        self.verifier = verifier_state if drafts else None
        self.sampler.draws = self.verifier is not None and self.verifier.draws
        self.wants_logprobs = sampling.logprobs is not None
        if any(isinstance(processor, Penalties) for processor in self.sampler.processors):
            self.history.count()
        self.max_length = 0
        self.state: SequenceState | None = None
        self.drafter_state: DrafterState | None = None
        self.cancelled = False
        self.finish_reason: str | None = None
        self.stop_token: int | None = None
        self.error: Exception | None = None
        self.logprobs: list[TokenLogprobs] = []
        self.scored_prompt: list[TokenLogprobs] = []
        self.steps: list[Step] = []
        self.interventions: list[Intervention] = []
        self.warnings: list[str] = [verifier.warning] if verifier_state is not None and verifier.warning else []
        self.draft_vocab_steps: Counter[int] = Counter()
        self.recovery_states: list[RecoveryState] = []
        self.forced_ids: tuple[int, ...] = ()
        self.held_steps: list[Step] = []
        self.prompt_snapshot: SequenceSnapshot | None = None
        self.n_prefilled = self.n_cached = self.n_drafter_miss = self.n_preempted = 0
        self.continues = False
        self.preempted_state: PreemptedState | None = None
        self.snapshot_at: list[int] = []
        self.added_at: float | None = None
        self.started_at: float | None = None
        self.first_token_at: float | None = None
        self.ended_at: float | None = None

    @property
    def prompt_ids(self) -> list[int]:
        """Ids of the prompt."""
        return self.token_ids[: self.n_prompt]

    @property
    def output_ids(self) -> list[int]:
        """Ids produced so far, including the end token."""
        return self.token_ids[self.n_prompt :]

    @property
    def n_tokens(self) -> int:
        """Number of output tokens."""
        return len(self.token_ids) - self.n_prompt

    @property
    def finished(self) -> bool:
        """True if the session has ended."""
        return self.finish_reason is not None

    @property
    def n_drafted(self) -> int:
        """Number of draft tokens in all steps."""
        return sum(step.drafted for step in self.steps)

    @property
    def n_accepted(self) -> int:
        """Number of accepted draft tokens in all steps."""
        return sum(step.accepted for step in self.steps)

    def read_output(self) -> OutputReader:
        """Return a new reader of the output, which stands before its first token."""
        if self._reader is not None:
            return self._reader()
        is_open = prompt_reasoning(self.token_ids[: self.n_prompt], self.special_tokens.think, self.eos)
        return SpecialTokenReader(self.special_tokens, is_open=bool(is_open))

    def cancel(self) -> None:
        """End the session after the present step or chunk of the prompt. May be called from any thread."""
        self.cancelled = True

    @property
    def unscored(self) -> bool:
        """True while log-probabilities of prompt tokens are missing that were asked for."""
        return self.prompt_logprobs is not None and len(self.scored_prompt) < self.n_prompt - 1

    @property
    def has_emitted(self) -> bool:
        """True if any token was emitted."""
        return any(step.tokens for step in self.steps)

    def snapshot(self, copy: StateCopy | None = None) -> SessionSnapshot:
        """Copy the state for other sessions to begin with; see `SessionSnapshot`."""
        return SessionSnapshot(self, copy)

    def append(self, accepted: Accepted) -> None:
        """Append accepted tokens."""
        for token in accepted.tokens:
            self.history.push(token)
        if self.wants_logprobs:
            self.logprobs += accepted.logprobs
        if accepted.tokens and self.first_token_at is None:
            self.first_token_at = perf_counter()
        if accepted.finish == "stop" and accepted.tokens and accepted.tokens[-1] in self.stop_ids:
            self.stop_token = accepted.tokens[-1]

    def record(self, step: Step) -> None:
        """Pass a step, and those before it that were held back, to the recorder."""
        if self.recorder is not None:
            for each in (*self.held_steps, step):
                self.recorder.emitted(each)

    def force(self, tokens: Sequence[int]) -> None:
        """Set tokens to inject and continue with plain decoding."""
        self.forced_ids = tuple(tokens)
        drafter_state, self.drafter = self.drafter_state, _NOTHING
        self.drafter_state = _NOTHING.start(self, None)
        if drafter_state is not None:
            drafter_state.close()

    def rewind(self) -> None:
        """Drop all output tokens and continue with plain decoding; steps and their times stay."""
        self.history.cut(self.n_prompt)
        self.logprobs.clear()
        self.forced_ids, self.first_token_at, self.drafter = (), None, _NOTHING
        self.held_steps = [step._replace(tokens=[], rows=(), accepted=0, injected=0) for step in self.held_steps]

    def discard_prompt_snapshot(self) -> None:
        """Release the state at the end of the prompt: no recovery will restart the session."""
        snapshot, self.prompt_snapshot = self.prompt_snapshot, None
        if snapshot is not None:
            snapshot.close()

    def release(self) -> None:
        """Release all memory of the session, even if a part of that fails; harmless if done before."""
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


def _check_prefix(prefix: SessionSnapshot | SequenceSnapshot, ids: np.ndarray) -> None:
    n = prefix.length
    if n >= len(ids):
        raise RequestError(f"prefix: has read {n} tokens, must leave the last of the prompt's {len(ids)}")
    if isinstance(prefix, SessionSnapshot) and prefix.token_ids != ids[:n].tolist():
        at = next(i for i, token in enumerate(prefix.token_ids) if token != ids[i])
        raise RequestError(f"prefix: has read token {prefix.token_ids[at]} at {at}, where the prompt has {ids[at]}")
