"""A draft that knows a law for each position, and no more; and laws to try it on."""

from dataclasses import dataclass

import numpy as np
from oracles import DraftingState
from toy import Toy

from dflash.decode.drafting.drafter import Drafter
from dflash.decode.drafting.sampled_chain import sampled_chain
from dflash.decode.drafting.shapes import Chain
from dflash.kernels import sample
from dflash.kernels.sample import SampleParams
from dflash.model.candidates import Candidates


def laws(n_vocab, seed, spread):
    """Logits after each token (V, V)."""
    return (spread * np.random.default_rng(seed).standard_normal((n_vocab, n_vocab))).astype(np.float32)


def law_of(logits, sampling):
    """Distribution of a row of logits."""
    for rule in sampling.after:
        logits = rule(logits, None)
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return weights / weights.sum()


def z_of(counts, law):
    """Chi-square of counts, as a normal deviate by Wilson and Hilferty; cells that expect less than 5 are one."""
    expected = counts.sum() * law
    assert counts[law == 0].sum() == 0
    small = expected < 5
    counts, expected = np.append(counts[~small], counts[small].sum()), np.append(expected[~small], expected[small].sum())
    counts, expected = counts[expected > 0], expected[expected > 0]
    k = len(expected) - 1
    statistic = ((counts - expected) ** 2 / expected).sum()
    return ((statistic / k) ** (1 / 3) - 1 + 2 / (9 * k)) / np.sqrt(2 / (9 * k))


def bigram_target(table):
    """A target whose token depends on the one before it alone."""
    toy = Toy(len(table), law=lambda text: table[text[-1]], slots=64, rows=2048, pages=512)
    toy.device, toy.attachments = "cpu", {}
    return toy


@dataclass(frozen=True, eq=False)
class Marginals(Drafter):
    """Takes each of the next positions for one after what `table` finds likeliest before it.

    coupled : True to sample with the noise of the target; else greedy
    """

    table: np.ndarray
    depth: int = 4
    coupled: bool = True

    def start(self, session, model, snapshot=None):
        return _Marginal(self, session)


class _Marginal(DraftingState):
    def __init__(self, drafter, session):
        super().__init__(drafter, session)
        self.shape = session.strategy.shape or Chain()

    def propose(self, max_draft):
        n, width = self.shape.wants(self.drafter.depth, max_draft)
        sampler, length = self.session.sampler, len(self.session.token_ids)
        if sampler.draws:
            return sampled_chain(self.candidates(n, sample.POOL), max_draft, sampler.draft_params(length), length)
        return self.shape.draft(self.candidates(n, width), max_draft)

    def candidates(self, n, width):
        drafter, text, rows = self.drafter, self.session.token_ids, []
        law = self.session.sampler.draft_params(len(text)) if drafter.coupled else SampleParams()
        for _ in range(n):
            rows.append(int(drafter.table[rows[-1]].argmax()) if rows else text[-1])
        ids, scores = np.empty((n, width), np.int32), np.empty((n, width), np.float32)
        positions = range(len(text), len(text) + n)
        sample.candidates(drafter.table[rows], [law] * n, positions, width, ids=ids, scores=scores)
        return Candidates(ids, scores)
