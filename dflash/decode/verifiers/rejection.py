"""Rejection sampling: each draft token is accepted with probability p / q."""

from dataclasses import dataclass

import numpy as np

from dflash.decode.drafting.draft import Draft
from dflash.decode.verifiers.base import Lossless, Taken, TargetPath


@dataclass(frozen=True)
class RejectionSampling(Lossless):
    """Accept a draft token x with probability ``min(1, p(x) / q(x))``; after a rejection sample from ``max(p - q, 0)``.

    p is the target's distribution and q the one that the drafter sampled x from, both after temperature, top-k, top-p and
    min-p. The output has the target's distribution, but for one seed other tokens than plain decoding; at temperature 0 it
    is equal. Drafts are chains. Where a drafter gives no q (prompt lookup), the step is that of `Coupled`: the same
    acceptance rate, p(x), since all of q is on x.

    Notes
    -----
    p is computed on the host in float64, V values for each row that is decided. On a GPU each such row of logits is copied.

    References
    ----------
    Leviathan, Kalman, Matias 2023, arXiv 2211.17192. Chen et al. 2023, arXiv 2302.01318.
    """

    def take(self, draft: Draft, target: TargetPath) -> Taken | None:
        """See `VerifierState`."""
        if draft.probs is None:
            return None
        taken: list[int] = []
        for i, token in enumerate(draft.tokens.tolist()):
            p = target.p(i)
            q = target.q(i, p)
            if q is None:
                break
            if target.uniform() * q[token] >= p[token]:
                return Taken(taken, target.sample(np.maximum(p - q, 0), i))
            taken.append(token)
            if not target.push(token, 1 + i):
                break
        return Taken(taken)
