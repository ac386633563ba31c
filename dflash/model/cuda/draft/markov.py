"""Markov head of DSpark on a GPU: the likeliest token of a position corrects the logits of the next."""

from typing import Any, NamedTuple

import numpy as np

from dflash.kernels.arrays import GpuArray
from dflash.kernels.confidence.cuda import Reach
from dflash.kernels.embed.cuda import Embed
from dflash.kernels.gpu import device
from dflash.kernels.linear.cuda import DecodeLinear
from dflash.kernels.sample.candidates import POOL
from dflash.kernels.sample.cuda_candidates import FindCandidates, Largest
from dflash.kernels.sample.cuda_pairs import Pairs
from dflash.kernels.tree.cuda import Features, GatherTop1
from dflash.model.cuda.weights import DeviceWeights
from dflash.model.draft.config import DraftConfig
from dflash.model.draft.markov import confidence_head
from dflash.model.draft.vocabulary import Vocabulary

PAIRED = 16
"""Candidates of a position that are scored after each candidate of the position before."""


class _MarkovStep(NamedTuple):
    """Launches of a position: code of the previous token, its float16 copy, correction, candidates, choice of a token.

    In `founds` and `picks`, the first item is for all candidates, the second for the likeliest token alone. `founds` has one
    launch for each sequence.
    """

    embed: Embed
    halve: Features
    correct: DecodeLinear
    founds: tuple[list[FindCandidates], list[Largest]]
    picks: tuple[GatherTop1, GatherTop1]


class Markov:
    """Candidates of all positions of some blocks, one position after another, and the number of confident positions.

    ``logits[t] + w2 w1[token before]`` along the likeliest tokens; for trees, also scores of pairs of other candidates.

    logits: float32 (R, V); logits of the rows of blocks; corrected in place.
    arrays: inputs of the blocks: ``counts``, ``row_params``, ``position``, ``tokens``.
    vocabulary: draft vocabulary, in the order of the logits.
    targets: int32 (V,) or None; see `FindCandidates`.
    stream: float32 (R, D); residual stream of the rows before the last norm.
    ids: int32 (R, POOL)
    scores: float32 (R, POOL)
    largest: tuple of int32 and float32 (R, 1); outputs of `Largest`, if only the likeliest tokens are computed.
    reach: int32 (S,) or None; number of draft positions of each sequence; None if there is no limit by confidence.
    pairs: launch that scores the likeliest candidates of each position after every candidate before; run for trees only.
    """

    def __init__(
        self,
        weights: DeviceWeights,
        config: DraftConfig,
        logits: GpuArray,
        arrays: GpuArray,
        *,
        vocabulary: Vocabulary,
        targets: GpuArray,
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
        self._steps: list[_MarkovStep] = []
        for t in range(config.lead, config.block):
            outs = [by_text[:, t, columns] for columns in vocabulary.columns()]
            address = device.array(np.array([codes[t].data.ptr], np.uint64))
            code = Embed(before, w1, codes[t]), Features(address, a.counts, order, rank, halves, which=1)
            correct = DecodeLinear(halves, w2, outs, add=True)
            found, largest = list[FindCandidates](), list[Largest]()
            for i in range(texts):
                one = slice(i * config.block + t, i * config.block + t + 1)
                own = {"out": (self.ids[one], self.scores[one]), "targets": targets, "shift": 1 - config.lead}
                found.append(FindCandidates(logits[one], a.row_params[i : i + 1], a.position[one], each=1, **own))
                largest.append(Largest(logits[one], out=(self.largest[0][one], self.largest[1][one])))
            picks = (
                GatherTop1(self.ids[t:], POOL * config.block, before),
                GatherTop1(self.largest[0][t:], config.block, before),
            )
            self._steps.append(_MarkovStep(*code, correct, (found, largest), picks))
        self._trust: Reach | None = None
        if config.has_confidence and min_confidence > 0:
            weight, bias = confidence_head(weights.host)
            gain, eps = weights.host.vector("output_norm.weight"), config.norm_eps
            self._trust = Reach(stream, codes, gain, weight, bias=bias, least=min_confidence, eps=eps, lead=config.lead)
        self.reach = self._trust.reach if self._trust else None
        about: dict[str, Any] = {
            "row_params": a.row_params,
            "position": a.position,
            "tokens": a.tokens,
            "each": config.block,
            "lead": config.lead,
        }
        about |= {"top": min(PAIRED, vocab), "targets": targets, "own": vocabulary.own}
        self.pairs = Pairs(logits, codes, (w1, weights.matrix("markov_w2.weight")), **about)

    def __call__(self, n_rows: int, *, chains: bool = False) -> None:
        """Launch for the first `n_rows` rows, in whole blocks; with `chains`, find only the likeliest tokens."""
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
