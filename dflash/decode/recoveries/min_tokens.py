"""Mask end tokens until the output has a minimum length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dflash.decode.recoveries.base import DONE, PASS, Verdict
from dflash.decode.recoveries.intervention import Intervention
from dflash.decode.registry.recoveries import MAX_TOKENS, Option, RequestField, RequestFields, register
from dflash.decode.sampling.processors import Row
from dflash.errors import RequestError

if TYPE_CHECKING:
    from dflash.decode.sampling.history import History
    from dflash.decode.verify import Accepted
    from dflash.decode.view import RecoveryView


def _from_request(fields: RequestFields) -> MinTokens | None:
    """Read vLLM's field ``min_tokens``."""
    n = fields.integer("min_tokens", 0, MAX_TOKENS, 0)
    return MinTokens(n) if n else None


@register(
    "min", Option("N", "n", required=True), variable="DFLASH_MIN_TOKENS", field=RequestField("min_tokens", _from_request)
)
@dataclass(frozen=True)
class MinTokens:
    """Mask end tokens, at every node of every draft, until the output has `n` tokens. Stop strings do not end it before.

    Parameters
    ----------
    n : int
        Least number of output tokens; 0 is off.
    """

    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise RequestError(f"min_tokens: must be 0 or more, got {self.n}")

    def start(self, session: RecoveryView) -> _MinTokensState | None:
        """Add the processor to the session's sampler; it is removed when it is no longer needed."""
        if not self.n or not session.stop_ids:
            return None
        processor = NoEnd(self.n, np.array(sorted(session.stop_ids)))
        session.sampler.add(processor)
        return _MinTokensState(processor)


class NoEnd:
    """Logits processor that masks end tokens at the first `n` positions, unless all other tokens are masked.

    held_off: sequence lengths at which an end token was likeliest.
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
                n_steps = len(session.steps) + len(session.held_steps)
                session.interventions.append(Intervention(n_steps, self.name, "mask", reason))
        self._processor.held_off.clear()
        if session.n_tokens + len(accepted.tokens) < self._processor.n or any(
            recovery_state.restarts for recovery_state in session.recovery_states
        ):
            return PASS
        session.sampler.remove(self._processor)
        return DONE
