"""The head of DSpark on a GPU: a walk in which the likeliest token of a position corrects the logits of the next."""

from typing import Any

import numpy as np

from dflash.kernels import device
from dflash.kernels.embed.cuda import Embed
from dflash.kernels.linear.cuda import Launch
from dflash.kernels.sample.candidates import POOL
from dflash.kernels.sample.cuda_candidates import Candidates
from dflash.kernels.tree.cuda import Features, Pick
from dflash.model.cuda.weights import DeviceWeights
from dflash.model.draft.config import DraftConfig


class Markov:
    """Candidates of all positions of some blocks, one position after another.

    ``logits[t] + w2 w1[token before]``. What is told of candidates beside the walk is how likely they are next to it.

    Parameters
    ----------
    weights : DeviceWeights
    config : DraftConfig
    logits : float32 (R, V)
        Of the rows of blocks; they are corrected in place.
    arrays : DeviceArrays
        Of the blocks: counts, laws, position, tokens.
    targets : int32 (V,) or None
        As of `Candidates`.

    Attributes
    ----------
    ids : int32 (R, POOL)
    scores : float32 (R, POOL)
    """

    def __init__(self, weights: DeviceWeights, config: DraftConfig, logits: Any, arrays: Any, targets: Any) -> None:
        n, vocab = logits.shape
        texts, a = len(arrays.laws), arrays
        self._config = config
        self.ids, self.scores = device.zeros(n, POOL, dtype=np.int32), device.zeros(n, POOL)
        before, codes = device.zeros(texts, dtype=np.int32), device.empty(texts, config.markov_rank)
        halves = device.empty(texts, config.markov_rank, dtype=np.float16)
        self._begin = Pick(a.tokens, config.block, before)
        self._embed = Embed(before, weights.matrix("markov_w1.weight"), codes)
        address, order = (device.array(np.array(values, kind)) for values, kind in (
            ([codes.data.ptr], np.uint64), (range(texts), np.int32)))  # fmt: skip
        self._halve = Features(address, a.counts, order, config.markov_rank, halves, which=1)
        w2 = weights.matrix("markov_w2.weight")
        by_text = logits[: texts * config.block].reshape(texts, config.block, vocab)
        self._steps = []
        for t in range(config.lead, config.block):
            correct = Launch(halves, [w2], [by_text[:, t]], add=True)
            found = []
            for i in range(texts):
                one = slice(i * config.block + t, i * config.block + t + 1)
                own = {"out": (self.ids[one], self.scores[one]), "targets": targets, "shift": 1 - config.lead}
                found.append(Candidates(logits[one], a.laws[i : i + 1], a.position[one], each=1, **own))
            self._steps.append((correct, found, Pick(self.ids[t:], POOL * config.block, before)))

    def __call__(self, n_rows: int) -> None:
        """Launch for the first `n_rows` rows, whole blocks."""
        n = n_rows // self._config.block
        self._begin()
        for correct, found, pick in self._steps:
            self._embed(n)
            self._halve(n)
            correct(n)
            for one in found[:n]:
                one(1)
            pick()
