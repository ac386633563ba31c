"""The head of DSpark on a GPU: a walk in which the likeliest token of a position corrects the logits of the next."""

from typing import Any, NamedTuple

import numpy as np

from dflash.kernels.confidence.cuda import Reach
from dflash.kernels.embed.cuda import Embed
from dflash.kernels.gpu import device
from dflash.kernels.linear.cuda import PackedLinear
from dflash.kernels.sample.candidates import POOL
from dflash.kernels.sample.cuda_candidates import Candidates, Largest
from dflash.kernels.sample.cuda_pairs import Pairs
from dflash.kernels.tree.cuda import Features, GatherTop1
from dflash.model.cuda.weights import DeviceWeights
from dflash.model.draft.config import DraftConfig
from dflash.model.draft.markov import confidence_head
from dflash.model.draft.vocabulary import Vocabulary

PAIRED = 16
"""Candidates of a position whose pairs are scored."""


class _Step(NamedTuple):
    """The launches of a position: the code of the token before, its halves, the correction; what follows, and its token.

    Of `picks` and `founds`, for each text, the first one takes all candidates, the second one the likeliest token.
    """

    embed: Embed
    halve: Features
    correct: PackedLinear
    founds: tuple[list[Candidates], list[Largest]]
    picks: tuple[GatherTop1, GatherTop1]


class Markov:
    """Candidates of all positions of some blocks, one position after another, and how far they are to be trusted.

    ``logits[t] + w2 w1[token before]`` along the walk; for trees, how well other candidates follow each other, too.

    Parameters
    ----------
    weights : DeviceWeights
    config : DraftConfig
    logits : float32 (R, V)
        Of the rows of blocks; they are corrected in place.
    arrays : DeviceArrays
        Of the blocks: counts, laws, position, tokens.
    vocabulary : Vocabulary
        The tokens that the logits are of.
    targets : int32 (V,) or None
        As of `Candidates`.
    stream : float32 (R, D)
        The rows before the last norm.
    min_confidence : float
        As of `BlockDraft`.

    Attributes
    ----------
    ids : int32 (R, POOL)
    scores : float32 (R, POOL)
    largest : tuple of int32 and float32 (R, 1)
        As of `Largest`, where that is all that was asked for.
    reach : int32 (S,) or None
        How many positions of each text are guessed; None if all.
    pairs : Pairs
        The likeliest of each position, and their scores after every candidate before; made once they are called for.
    """

    def __init__(
        self,
        weights: DeviceWeights,
        config: DraftConfig,
        logits: Any,
        arrays: Any,
        *,
        vocabulary: Vocabulary,
        targets: Any,
        stream: Any,
        min_confidence: float,
    ) -> None:
        n, vocab = logits.shape
        texts, a = len(arrays.row_params), arrays
        self._config = config
        self.ids, self.scores = device.zeros(n, POOL, dtype=np.int32), device.zeros(n, POOL)
        rank, w1 = config.markov_rank, weights.matrix("markov_w1.weight")
        before, codes = device.zeros(texts, dtype=np.int32), device.zeros(config.block, texts, rank)
        halves, order = device.empty(texts, rank, dtype=np.float16), device.array(np.arange(texts, dtype=np.int32))
        self._begin = GatherTop1(a.tokens, config.block, before)
        w2 = [weights.matrix("markov_w2.weight").rows(part) for part in vocabulary.parts]
        by_text = logits[: texts * config.block].reshape(texts, config.block, vocab)
        self.largest = device.zeros(n, 1, dtype=np.int32), device.zeros(n, 1)
        self._steps: list[_Step] = []
        for t in range(config.lead, config.block):
            outs = [by_text[:, t, columns] for columns in vocabulary.columns()]
            address = device.array(np.array([codes[t].data.ptr], np.uint64))
            code = Embed(before, w1, codes[t]), Features(address, a.counts, order, rank, halves, which=1)
            correct = PackedLinear(halves, w2, outs, add=True)
            found, largest = list[Candidates](), list[Largest]()
            for i in range(texts):
                one = slice(i * config.block + t, i * config.block + t + 1)
                own = {"out": (self.ids[one], self.scores[one]), "targets": targets, "shift": 1 - config.lead}
                found.append(Candidates(logits[one], a.row_params[i : i + 1], a.position[one], each=1, **own))
                largest.append(Largest(logits[one], out=(self.largest[0][one], self.largest[1][one])))
            picks = (
                GatherTop1(self.ids[t:], POOL * config.block, before),
                GatherTop1(self.largest[0][t:], config.block, before),
            )
            self._steps.append(_Step(*code, correct, (found, largest), picks))
        self._trust: Reach | None = None
        if config.has_confidence and min_confidence > 0:
            weight, bias = confidence_head(weights.host)
            gain, about = weights.host.vector("output_norm.weight"), {"eps": config.norm_eps, "lead": config.lead}
            self._trust = Reach(stream, codes, gain, weight, bias=bias, least=min_confidence, **about)
        self.reach = self._trust.reach if self._trust else None
        about = {
            "row_params": a.row_params,
            "position": a.position,
            "tokens": a.tokens,
            "each": config.block,
            "lead": config.lead,
        }
        about |= {"top": min(PAIRED, vocab), "targets": targets, "own": vocabulary.own}
        self.pairs = Pairs(logits, codes, (w1, weights.matrix("markov_w2.weight")), **about)

    def __call__(self, n_rows: int, *, chains: bool = False) -> None:
        """Launch for the first `n_rows` rows, whole blocks; for chains the likeliest tokens do."""
        n = n_rows // self._config.block
        self._begin()
        for step in self._steps:
            step.embed(n)
            step.halve(n)
            step.correct(n)
            for one in step.founds[chains][:n]:
                one(1)
            step.picks[chains]()
        if self._trust:
            self._trust(n)
