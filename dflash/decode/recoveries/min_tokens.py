"""No end before a text has some length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dflash.decode.recoveries.base import DONE, PASS, Verdict
from dflash.decode.recoveries.intervention import Intervention
from dflash.decode.sampling.processors import Row
from dflash.errors import RequestError

if TYPE_CHECKING:
    from dflash.decode.sampling.history import History
    from dflash.decode.verify import Accepted
    from dflash.decode.view import RecoveryView


@dataclass(frozen=True)
class MinTokens:
    """No end token may come before a text has `n` tokens, at no node of any draft; stop strings do not count before that.

    Parameters
    ----------
    n : int
        Produced tokens; 0 is off.
    """

    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise RequestError(f"min_tokens: must be 0 or more, got {self.n}")

    def start(self, session: RecoveryView) -> _MinTokensState | None:
        """Add the rule; it is taken away when it can't matter any more."""
        if not self.n or not session.eos:
            return None
        processor = NoEnd(self.n, np.array(sorted(session.eos)))
        session.sampler.add(processor)
        return _MinTokensState(processor)


class NoEnd:
    """The rule: end tokens are masked in the first `n` places, unless nothing else is left.

    Attributes
    ----------
    held_off : set of int
        Lengths of the text at which an end token was likeliest.
    """

    def __init__(self, n: int, ends: np.ndarray) -> None:
        self.n, self.held_off = n, set[int]()
        self._ends = ends

    def __call__(self, logits: Row, history: History) -> Row:
        """``logits[ends] = -inf``."""
        if history.n_produced >= self.n:
            return logits
        ends = self._ends[self._ends < len(logits)]
        was = logits[ends]
        logits[ends] = -np.inf
        best = logits.max()
        if best == -np.inf:
            logits[ends] = was
        elif was.max(initial=-np.inf) > best:
            self.held_off.add(len(history))
        return logits

    def __repr__(self) -> str:
        return f"NoEnd({self.n})"


class _MinTokensState:
    name, restarts = "MinTokens", False

    def __init__(self, processor: NoEnd) -> None:
        self._processor = processor

    def check_step(self, session: RecoveryView, accepted: Accepted) -> Verdict:
        n_text = len(session.token_ids)
        for at in sorted(self._processor.held_off):
            if n_text <= at < n_text + len(accepted.tokens):
                n = at - session.n_prompt
                reason = f"an end was likeliest after {n} tokens, of at least {self._processor.n}"
                session.interventions.append(
                    Intervention(len(session.steps) + len(session.held_steps), self.name, "mask", reason)
                )
        self._processor.held_off.clear()
        if session.n_tokens + len(accepted.tokens) < self._processor.n or any(
            recovery_state.restarts for recovery_state in session.recovery_states
        ):
            return PASS
        session.sampler.remove(self._processor)
        return DONE
