"""The target's distributions along a draft, for verifiers that need them."""

import numpy as np

from dflash.decode.drafting.draft import Draft
from dflash.decode.verifiers.base import Probs
from dflash.decode.view import SamplingView
from dflash.errors import DFlashError
from dflash.kernels.sample.cuda_logits import LogitRows

_WORD = 2**64


class DraftPath:
    """Implements `TargetPath`. Restore the history with ``history.cut`` afterwards.

    Uniform numbers come from Philox, keyed by seed and length of the sequence; so no step repeats those of another.
    """

    def __init__(self, draft: Draft, logits: LogitRows, session: SamplingView) -> None:
        self._draft, self._logits, self._session = draft, logits, session
        self._root = len(session.history)
        key = np.array([session.sampler.params.seed % _WORD, self._root], np.uint64)
        self._random = np.random.Generator(np.random.Philox(key=key))

    def p(self, row: int) -> Probs:
        """See `TargetPath`."""
        session = self._session
        mask = None if session.grammar is None else session.grammar.mask(row)
        p = session.sampler.distribution(self._logits[row], session.history, mask)
        if not p.any():
            raise DFlashError(f"no token can follow at position {len(session.history)}: all logits are NaN or masked")
        return p

    def q(self, index: int, p: Probs) -> Probs | None:
        """See `TargetPath`."""
        assert self._draft.probs is not None, "the drafter has given them"
        q = self._draft.probs.row(index, len(p))
        if self._session.grammar is None:
            return q
        q[p == 0] = 0
        return q / q.sum() if q[self._draft.tokens[index]] > 0 else None

    def push(self, token: int, row: int) -> bool:
        """See `TargetPath`."""
        session = self._session
        if token in session.stop_ids or len(session.history) + 1 >= session.max_length:
            return False
        session.history.push(token)
        return session.grammar is None or session.grammar.affords(row)

    def uniform(self) -> float:
        """See `TargetPath`."""
        return self._random.random()

    def sample(self, weights: Probs, depth: int) -> int | None:
        """See `TargetPath`."""
        return self._session.sampler.sample_from(weights, self._root + depth) if weights.any() else None
