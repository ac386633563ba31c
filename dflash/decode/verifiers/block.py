"""Block verification: the draft tokens of a step are accepted together."""

from dataclasses import dataclass

import numpy as np

from dflash.decode.drafting.draft import Draft
from dflash.decode.verifiers.base import Lossless, Taken, TargetPath


@dataclass(frozen=True)
class BlockVerification(Lossless):
    """Accept the longest part of a draft that a joint test over its tokens allows; never fewer on average than p / q.

    With ``w[0] = 1``, ``w[i] = min(1, w[i-1] p(x[i]) / q(x[i]))`` and ``s[i] = sum(max(w[i] p - q, 0))`` over next tokens,
    the first i tokens pass with probability ``s[i] / (s[i] + 1 - w[i])``, all of them with ``w``. The longest part that
    passes is accepted, and the next token is sampled from ``max(w[i] p - q, 0)``. Otherwise as `RejectionSampling`.

    References
    ----------
    Sun et al. 2024, Block Verification Accelerates Speculative Decoding, arXiv 2403.10444.
    """

    def take(self, draft: Draft, target: TargetPath) -> Taken | None:
        """See `VerifierState`."""
        if draft.probs is None:
            return None
        tokens, weight, depth = draft.tokens.tolist(), 1.0, 0
        n, rest = 0, np.empty(0)
        while depth < len(tokens):
            p = target.p(depth)
            q = target.q(depth, p)
            if q is None:
                break
            surplus = np.maximum(weight * p - q, 0)
            share = surplus.sum()
            # a weight of 1 passes also where p and q are equal, so that the surplus is 0
            if weight >= 1 or target.uniform() * (share + 1 - weight) < share:
                n, rest = depth, surplus
            token = tokens[depth]
            weight = min(1.0, weight * p[token] / q[token])
            depth += 1
            if weight == 0 or not target.push(token, depth):
                break
        if target.uniform() < weight:
            return Taken(tokens[:depth])
        return Taken(tokens[:n], target.sample(rest, n))
