"""Candidates of a DFlash 2 draft model on a GPU, and scores of pairs of consecutive candidates."""

from pathlib import Path

import numpy as np

from dflash.kernels.arrays import GpuArray, Stream
from dflash.kernels.embed.cuda import Embed
from dflash.kernels.formats.cuda import PackedWeight
from dflash.kernels.gpu import device
from dflash.kernels.gpu.jit import kernel
from dflash.kernels.sample.candidates import POOL
from dflash.kernels.sample.cuda_candidates import Likeliest

_HERE = Path(__file__).parent


class Pairs:
    """The largest logits of each row, and scores of all pairs of candidates of consecutive rows.

    logits: float32 (R, V); logits of the draft model; all arrays are on the device.
    gates: float32 (R, K); gates of each row; or, for the sequential variant, (each, S, K): codes of the tokens that correct
        the logits, see edge_scores.cu.
    codes: codes of the preceding and of the following token of a pair.
    row_params, position: as for `Candidates`.
    tokens: int32 (R,); the first entry of each block is the token before its first draft token.
    each, lead: rows of a block, and number of leading rows without draft tokens.
    top: candidates of a row, at most 32.
    targets: int32 (V,), optional; as for `Candidates`.
    own: codes of following tokens are in the order of the logits (draft vocabulary).
    ids: int32 (R, top)
    scores: float32 (R, top)
    edges: float32 (R, top, top); as in `dflash.model.candidates.Candidates`.
    """

    def __init__(
        self,
        logits: GpuArray,
        gates: GpuArray,
        codes: tuple[PackedWeight, PackedWeight],
        *,
        row_params: GpuArray,
        position: GpuArray,
        tokens: GpuArray,
        each: int,
        lead: int,
        top: int,
        targets: GpuArray = None,
        own: bool = False,
    ) -> None:
        (n, vocab), rank, walk = logits.shape, gates.shape[-1], gates.ndim == 3
        self._likeliest, self._n_top = Likeliest(logits), top
        found, largest = self._likeliest.found, self._likeliest.largest
        self.ids, self.scores = device.zeros(n, top, dtype=np.int32), device.zeros(n, top)
        self.edges = device.zeros(n, top, top)
        listed = [device.zeros(n * top, dtype=np.int32) for _ in codes]
        looked_up = [device.zeros(n * top, rank) for _ in codes]
        self._embeds = [Embed(*args) for args in zip(listed, codes, looked_up, strict=True)]
        shape = {"VOCAB": vocab, "THREADS": POOL, "MAX_TOP": POOL, "TOP": top, "RANK": rank, "BLOCK_ROWS": each}
        shape |= {"FIRST_DRAFT_ROW": lead, "SEQUENTIAL": int(walk)}
        names, score = (
            kernel(_HERE / "edge_scores.cu", entry, dependent=True, **shape) for entry in ("edge_tokens", "edge_scores")
        )
        self._list = names.bind(1, top, (found, largest, tokens, targets, int(own), self.ids, *listed))
        texts = gates.shape[1] if walk else 0
        args = found, largest, self.ids, *looked_up, gates, texts, row_params, position, 1 - lead, self.scores, self.edges
        self._pairs = score.bind(1, top * top, args)

    def __call__(self, n_rows: int, stream: Stream = None) -> None:
        """Launch for the first `n_rows` rows, which are whole blocks."""
        self._likeliest(n_rows, stream)
        self._list(stream, grid=n_rows)
        for embed in self._embeds:
            embed(n_rows * self._n_top, stream)
        self._pairs(stream, grid=n_rows)
