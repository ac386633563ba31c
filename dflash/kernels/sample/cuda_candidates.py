"""Candidate tokens from rows of draft logits on a GPU, in three launches for all rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dflash.kernels.arrays import GpuArray, Stream
from dflash.kernels.gpu import device
from dflash.kernels.gpu.buffers import DeviceArrays
from dflash.kernels.gpu.jit import kernel
from dflash.kernels.gpu.launch import RowLaunch
from dflash.kernels.sample.candidates import POOL
from dflash.kernels.sample.cuda_layout import GROUP, ROW_PARAMS, SELECT_THREADS, SURVEY, record
from dflash.kernels.sample.cuda_logits import Proposed
from dflash.kernels.sample.params import SampleParams

_HERE = Path(__file__).parent
_FOUND_WORDS = 4 + 2 * POOL


class Likeliest:
    """The `POOL` largest logits of each row, in descending order.

    logits: float32 (R, V)
    found: int32 (R, words); records ``RowLogprobs`` of rows.cuh with `POOL` entries.
    largest: float32 (R,)
    """

    def __init__(self, logits: GpuArray) -> None:
        n, vocab = logits.shape
        self._chunks = chunks = -(-vocab // SURVEY["CHUNK"])
        every = np.zeros(n, ROW_PARAMS)
        every["top_p"], every["n_top"] = 1, POOL
        tell = device.array(every.view(np.int32))
        tops = device.zeros(n, -(-vocab // GROUP), dtype=np.uint32)
        sums, self.largest = device.zeros(n, chunks, 3), device.zeros(n)
        best, arrived = device.zeros(n, dtype=np.uint64), device.zeros(n, dtype=np.uint32)
        first, self.found = device.zeros(n, dtype=np.int32), device.zeros(n, _FOUND_WORDS, dtype=np.int32)
        survey = kernel(_HERE / "row_stats.cu", "row_stats", dependent=True, VOCAB=vocab, **SURVEY)
        shape = {"VOCAB": vocab, "THREADS": SELECT_THREADS, "N_CHUNKS": chunks, "MAX_TOP": POOL}
        top = kernel(_HERE / "logprobs.cu", "logprobs", dependent=True, **shape)
        args = logits, tell, tops, sums, best, arrived, first, self.largest, 0, 0
        self._survey = survey.bind(1, SURVEY["THREADS"], args)
        self._top = top.bind(1, SELECT_THREADS, (logits, tell, tops, sums, self.largest, first, self.found))

    def __call__(self, n_rows: int, stream: Stream = None) -> None:
        """Launch for the first `n_rows` rows."""
        self._survey(stream, grid=(self._chunks, n_rows))
        self._top(stream, grid=n_rows)


class Largest(RowLaunch):
    """The largest logit of each row, in one launch.

    logits: float32 (R, V)
    out: tuple of int32 and float32 (R, 1), optional; arrays for ids and scores; allocated if None.
    ids: int32 (R, 1); token of the largest logit: the lowest among equals, -1 if there is none.
    scores: float32 (R, 1)
    """

    def __init__(self, logits: GpuArray, *, out: tuple[Any, Any] | None = None) -> None:
        n, vocab = logits.shape
        nothing = np.zeros(n, ROW_PARAMS)
        nothing["n_top"] = -1
        self.ids, self.scores = out or (device.zeros(n, 1, dtype=np.int32), device.zeros(n, 1))
        best, arrived = device.zeros(n, dtype=np.uint64), device.zeros(n, dtype=np.uint32)
        made = kernel(_HERE / "row_stats.cu", "row_stats", dependent=True, VOCAB=vocab, **SURVEY)
        args = logits, device.array(nothing.view(np.int32)), None, None, best, arrived, self.ids, self.scores, 0, 0
        super().__init__(made.bind(1, SURVEY["THREADS"], args), -(-vocab // SURVEY["CHUNK"]))


class FindCandidates:
    """`dflash.kernels.sample.candidates` on fixed arrays, for any number of rows.

    logits: float32 (R, V); logits of the draft model; all arrays are on the device.
    row_params: int32 (S, words of `ROW_PARAMS`); a record for every `each` rows; the positions in the records are ignored.
    position: int32 (R,); positions of the rows.
    each: number of consecutive rows with the same parameters.
    shift: row r predicts the token at ``position[r] + shift``.
    out: tuple of int32 and float32 (R, POOL), optional; arrays for ids and scores; allocated if None.
    targets: int32 (V,), optional; target token id of each draft token id; it is returned and selects the noise.
    ids: int32 (R, POOL)
    scores: float32 (R, POOL); results. Greedy rows equal those of the CPU; the scores of sampled rows may differ in the last
        bits.

    Reads ``4 * V`` bytes a row.
    """

    def __init__(
        self,
        logits: GpuArray,
        row_params: GpuArray,
        position: GpuArray,
        *,
        each: int,
        shift: int,
        out: tuple[Any, Any] | None = None,
        targets: GpuArray = None,
    ) -> None:
        n, vocab = logits.shape
        self._likeliest = Likeliest(logits)
        self.ids, self.scores = out or (device.zeros(n, POOL, dtype=np.int32), device.zeros(n, POOL))
        rank = kernel(_HERE / "candidates.cu", "candidates", dependent=True, VOCAB=vocab, THREADS=POOL, MAX_TOP=POOL)
        args = row_params, each, position, shift, targets, self.ids, self.scores
        self._rank = rank.bind(1, POOL, (self._likeliest.found, self._likeliest.largest, *args))

    def __call__(self, n_rows: int, stream: Stream = None) -> None:
        """Launch for the first `n_rows` rows."""
        self._likeliest(n_rows, stream)
        self._rank(stream, grid=n_rows)


class Proposing:
    """Finds candidates of some rows for a call from the host. logits: float32 (R, V)."""

    def __init__(self, logits: GpuArray) -> None:
        n = len(logits)
        self._asked = DeviceArrays(row_params=(n, ROW_PARAMS.itemsize // 4), position=(n,))
        self._find = FindCandidates(logits, self._asked.row_params, self._asked.position, each=1, shift=0)

    def __call__(self, rows: Sequence[int], row_params: Sequence[SampleParams], positions: Sequence[int]) -> Proposed:
        """Return ids and scores, each (n, POOL), of the rows."""
        host, n = self._asked.host, max(rows) + 1
        everyone = [SampleParams()] * n
        for row, params, position in zip(rows, row_params, positions, strict=True):
            everyone[row], host.position[row] = params, position
        describe(host.row_params, everyone)
        self._asked.upload()
        self._find(n)
        return self._find.ids[:n].get()[rows], self._find.scores[:n].get()[rows]


def describe(row_params: GpuArray, of: Sequence[SampleParams]) -> None:
    """Write records of sampling parameters to the first rows of an int32 (S, words) host array."""
    records = row_params.view(ROW_PARAMS)[:, 0]
    for i, params in enumerate(of):
        records[i] = record(params)
