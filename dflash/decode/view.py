"""Protocols of a session for the parts that work on it: drafters, recoveries, verification, recorders.

`dflash.decode.session.Session` has all these members. All parts run in the engine's thread, so nothing changes while one
of their methods runs. A member may only be changed where its docstring says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dflash.decode.drafting.shapes import Shape
from dflash.decode.grammar.state import GrammarState
from dflash.decode.output_part import OutputReader
from dflash.decode.recoveries.intervention import Intervention
from dflash.decode.sampling.history import History
from dflash.decode.sampling.params import Sampling
from dflash.decode.sampling.sampler import Sampler
from dflash.decode.special_tokens import SpecialTokens
from dflash.decode.step import Step
from dflash.decode.verifiers.base import VerifierState

Detokenize = Callable[[Sequence[int]], str]
"""Returns the text of token ids."""


class StrategyView(Protocol):
    """Settings that the strategy gives to its drafter."""

    @property
    def shape(self) -> Shape | None:
        """Shape of the drafts; the drafter chooses if None. Read in `Drafter.start`; never changes."""


class RestartView(Protocol):
    """The part of a recovery state that other recoveries read."""

    @property
    def restarts(self) -> bool:
        """True if the recovery may still return `Restart`. Read between steps; turns False once."""


class RestartViews(Protocol):
    """Recovery states of a session as drafters and other recoveries see them."""

    def __iter__(self) -> Iterator[RestartView]:
        """Yield the states, the innermost first."""

    def __len__(self) -> int:
        """Return the number of states. While it is not 0, tokens must reach the host before the next step."""

    def remove(self, recovery_state: Any, /) -> None:
        """Remove a state; a recovery does this in `check_step` with its own, and drafters never do."""


class SessionView(Protocol):
    """Members of a session that a drafter may read, in `Drafter.start` and in all methods of its state."""

    token_ids: list[int]
    """Ids of the prompt and of all accepted tokens.

    In `propose` it ends with the token under which the draft tokens stand. In `observe` it holds the new tokens already,
    except after an overlapped step, whose newest token is not known yet. During a step `verify` appends draft tokens and
    removes them again; no drafter runs meanwhile.
    """

    n_prompt: int
    """Number of prompt ids; never changes."""

    snapshot_at: list[int]
    """Numbers of prompt tokens, rising, after which the prefix cache calls `DrafterState.snapshot`. Set before `start`."""

    n_prefilled: int
    """Number of prompt tokens in the target's state. At `n_prompt` - 1 prefill is complete.

    In `start` it is the length of the prefix that another session has prefilled, or of the state of this session before it
    was preempted, with its output. In `observe` it counts the rows observed.
    """

    max_length: int
    """Most ids that `token_ids` will hold. Never changes after `start`."""

    cache_salt: str
    """Sessions of other salts must learn nothing of this one; never changes."""

    @property
    def strategy(self) -> StrategyView:
        """The strategy, for the shape of the drafts. Read in `Drafter.start`; never changes."""

    verifier: VerifierState | None
    """Decides which draft tokens are accepted; None as `Coupled` does. With one, draft tokens must reach the host."""

    sampler: Sampler
    """Sampling parameters (`Sampler.draft_params`) for drafters that draw their tokens as the target does.

    `Sampler.processors` is not empty if logits depend on the path; then draft tokens must reach the host before they are
    verified. Recoveries may add a processor in `start` or `check_step` and remove it later; drafters must not.
    """

    grammar: GrammarState | None
    """Grammar of the output. With one, draft tokens must reach the host, where illegal ones are removed."""

    forced_ids: tuple[int, ...]
    """Tokens that a recovery injects next, whatever the model predicts; usually empty. Set by the engine."""

    @property
    def recovery_states(self) -> RestartViews:
        """States of the recoveries, the innermost first. Read before drafts are launched, and in `check_step`."""

    steps: list[Step]
    """Steps that were emitted, the oldest first."""

    held_steps: list[Step]
    """Steps after those of `steps` that a recovery holds back."""

    draft_vocab_steps: Counter[int]
    """Number of steps by size of the draft vocabulary. Drafters with several sizes add to it."""

    warnings: list[str]
    """Warnings for the caller. Drafters append to it if their draft model seems wrong or damaged."""


class RecoveryView(SessionView, Protocol):
    """Members that a recovery may use beside those of `SessionView`, in `Recovery.start` and `RecoveryState.check_step`.

    In `check_step`, `token_ids` does not yet contain the tokens of the step.
    """

    @property
    def drafter(self) -> object:
        """The drafter in use, to be compared only: `Nothing` in plain decoding, and after an injection or a restart."""

    eos: frozenset[int]
    """End tokens of the model: each ends a message."""

    stop_ids: frozenset[int]
    """Tokens that end this session; usually `eos`."""

    special_tokens: SpecialTokens
    """Ids with a meaning for recoveries; never changes."""

    detokenize: Detokenize | None
    """Returns the text of ids; bytes that are not a whole character become U+FFFD. None without a tokenizer."""

    interventions: list[Intervention]
    """Interventions so far. The engine appends those of returned verdicts; a recovery appends others itself."""

    @property
    def n_tokens(self) -> int:
        """Number of ids after the prompt, without those of the step being checked."""

    def read_output(self) -> OutputReader:
        """Return a new reader of the output, which stands before its first token: see `dflash.decode.output_part`."""

    @property
    def prompt_ids(self) -> list[int]:
        """Ids of the prompt, as a new list."""

    @property
    def output_ids(self) -> list[int]:
        """Ids after the prompt without those of the step being checked, as a new list."""


class RecordedSession(Protocol):
    """Members of a session that a recorder may read, in all of its methods; none may be changed."""

    history: History
    """Ids so far, with the path that `verify` walks while a token is being picked."""

    sampler: Sampler
    """Picks the tokens."""

    sampling: Sampling
    """Sampling parameters of the request; never change."""

    seed: int
    """Key of the noise; never changes."""

    detokenize: Detokenize | None
    """Returns the text of ids, as for recoveries; never changes."""

    @property
    def prompt_ids(self) -> list[int]:
        """Ids of the prompt, as a new list."""

    @property
    def strategy(self) -> StrategyView:
        """The strategy; its repr names it. Never changes."""


class Recorder(Protocol):
    """Receives everything that a session does, in the engine's thread. An exception in it ends the session."""

    def started(self, session: RecordedSession) -> None:
        """Called once, when the session was admitted and before its first step."""

    def picked(self, row: int, logits: NDArray[np.float32], token: int) -> None:
        """Called by `verify` for each token it picks, in order.

        Parameters
        ----------
        row : int
            Row of the session's span: 0 for the last token of the sequence, ``1 + i`` for draft token i.
        logits : float32 (V,)
            The model's own logits, before any processor.
        token : int
            The picked id.
        """

    def emitted(self, step: Step) -> None:
        """Called once for each step when it is emitted, in order."""


class SamplingView(Protocol):
    """Members of a session that `verify` uses."""

    sampler: Sampler
    """Picks the token at each node."""

    history: History
    """Ids so far; `verify` appends the path that it walks and removes it again."""

    grammar: GrammarState | None
    """Grammar of the output, at the position of `history`."""

    stop_ids: frozenset[int]
    """Ids that end the sequence."""

    max_length: int
    """Most ids of the sequence."""

    forced_ids: tuple[int, ...]
    """Ids to take instead of sampled ones; see `SessionView.forced_ids`."""

    verifier: VerifierState | None
    """Decides about the draft; None as `Coupled` does."""

    recorder: Recorder | None
    """Receives each pick."""

    wants_logprobs: bool
    """True if log-probabilities of the tokens are wanted."""
