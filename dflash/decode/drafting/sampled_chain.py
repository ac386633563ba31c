"""Chains whose tokens are samples, with the distributions that they were sampled from."""

import numpy as np

from dflash.decode.drafting.draft import Draft, DraftProbs
from dflash.kernels import sample
from dflash.kernels.sample import SampleParams
from dflash.model.candidates import Candidates


def sampled_chain(candidates: Candidates, max_draft: int, params: SampleParams, first: int) -> Draft:
    """Return the chain of the best candidates with `Draft.probs`.

    first: position in the sequence to which candidate position 0 belongs.

    The best candidate is a sample, since scores are logits with Gumbel noise. Without the noise they are the logits again.
    """
    n, width = min(len(candidates), max_draft), candidates.ids.shape[1]
    tokens: list[int] = []
    values, noise, best = np.zeros((max(n, 0), width)), np.empty(width, np.float32), 0
    for t in range(n):
        ids = candidates.ids[t]
        scores = np.where(ids < 0, -np.inf, candidates.scores[t] if candidates.edges is None else candidates.edges[t, best])
        best = int(np.argmax(scores))
        if not np.isfinite(scores[best]):
            break
        sample.gumbel(params.seed, first + t, np.maximum(ids, 0), out=noise)
        logits = scores - noise
        weights = np.exp(logits - logits.max())
        values[t] = weights / weights.sum()
        tokens.append(int(ids[best]))
    return Draft(tokens, probs=DraftProbs(candidates.ids[: len(tokens)], values[: len(tokens)]))
