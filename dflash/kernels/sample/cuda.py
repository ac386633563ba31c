"""Sampling on a GPU: a step of all sequences takes one upload of parameters and two or three launches."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from dflash.errors import KernelError
from dflash.kernels.arrays import GpuArray, Stream
from dflash.kernels.gpu import device
from dflash.kernels.gpu.jit import kernel
from dflash.kernels.gpu.launch import Bound
from dflash.kernels.gpu.lazy_array import LazyArray
from dflash.kernels.gpu.mirror import Mirror
from dflash.kernels.sample.cuda_candidates import Proposing
from dflash.kernels.sample.cuda_edits import DeviceEdits
from dflash.kernels.sample.cuda_layout import FOUND, GROUP, MOST_TOP, ROW_PARAMS, SELECT_THREADS, SURVEY, record
from dflash.kernels.sample.cuda_logits import DeviceSampleResult, Logits, Proposed
from dflash.kernels.sample.params import SampleParams, SampleRequest

_CAPACITY = 4  # masks of the first allocation, 31 KiB each for 248,320 tokens; most steps have fewer constrained rows


class DeviceMasks:
    """Copies the masks of a step's rows to the device."""

    def __init__(self, vocab: int) -> None:
        self._record = np.dtype([("words", np.uint32, (-(-vocab // 32),))])
        self._mirror: Mirror | None = None

    def upload(self, masks: Mapping[int, NDArray[np.uint32]], stream: Stream) -> dict[int, int]:
        """Copy the masks of some rows, asynchronously; return the device address of each row's mask.

        The previous masks must no longer be in use.
        """
        if not masks:
            return {}
        if self._mirror is None or len(masks) > len(self._mirror.host):
            self._mirror = Mirror(max(2 * len(masks), _CAPACITY), self._record)
        for i, words in enumerate(masks.values()):
            self._mirror.host["words"][i] = words
        self._mirror.upload(len(masks), stream)
        return {row: self._mirror.device[i].data.ptr for i, row in enumerate(masks)}


_HERE = Path(__file__).parent
_DRAW_THREADS, _DRAW_TOKENS = 512, 2048  # threads of a block of draw.cu, and the tokens of a row that it handles
_DRAW_BLOCKS = 1056  # blocks of draw.cu over all rows: eight for each of the 132 multiprocessors of an H100 or H200
_MOST_VOCAB = 1 << 19  # limit of select.cuh, whose sums then fit 64 bits
_NO_PARAMS = np.zeros(1, ROW_PARAMS)
_NO_PARAMS["n_top"] = -1


class DeviceSampler:
    """Samples tokens from rows of logits that stay on the device.

    logits: float32 (R, V); device array that forwards write their logits to.
    stream: stream of the forwards; the stream that is current in each call if None.
    position: int32 (R,), optional; device array with the position of each row in its sequence; the sampled token comes one
        position later. With it, the positions of a request may be a `LazyArray`.

    A greedy row reads ``4 * V`` bytes. A sampled row reads them twice, except for parts that top-k and top-p exclude. The
    noise has the same bits as on the CPU, so the same logits give the same token. The only exception is the limit of top-p,
    which may differ if two sums agree to 7 digits. Two runs give the same tokens, whatever other rows are in the launch.
    """

    def __init__(self, logits: GpuArray, *, stream: Stream = None, position: GpuArray = None) -> None:
        n, vocab = logits.shape
        if vocab >= _MOST_VOCAB:
            raise KernelError(f"sampler: rows of {vocab} logits; there must be fewer than {_MOST_VOCAB}")
        self.logits, self.stream = logits, stream
        self._row_params, self.ids = Mirror(n, ROW_PARAMS), device.zeros(n, dtype=np.int32)
        self._host_ids = device.pinned(n, dtype=np.int32)  # the kernels store tokens here, too: a copy would be a launch
        self._found: Mirror | None = None
        self._edits, self._masks = DeviceEdits(logits), DeviceMasks(vocab)
        self._bind(n, vocab)
        self._place = None
        if position is not None:
            assert ROW_PARAMS.fields is not None, "a structured type"
            args = position, self._row_params.device, ROW_PARAMS.itemsize // 4, ROW_PARAMS.fields["position"][1] // 4, n
            self._place = kernel(_HERE / "set_positions.cu", "set_positions", dependent=True).bind(1, max(n, 32), args)
        self._event = _event()
        self._latest: Callable[[], DeviceSampleResult | None] = lambda: None
        self._proposing: Any = None
        self._row = device.pinned(vocab)

    def _bind(self, n: int, vocab: int) -> None:
        self._chunks, self._blocks = -(-vocab // SURVEY["CHUNK"]), -(-vocab // _DRAW_TOKENS)
        logits, row_params, ids, host_ids = self.logits, self._row_params.device, self.ids, self._host_ids.ctypes.data
        no_laws, largest = device.array(np.repeat(_NO_PARAMS, n).view(np.int32)), device.zeros(n)
        tops = device.zeros(n, -(-vocab // GROUP), dtype=np.uint32)
        sums = device.zeros(n, self._chunks, 3)
        best, arrived = device.zeros(n, dtype=np.uint64), device.zeros(n, dtype=np.uint32)
        args = tops, sums, best, arrived, ids, largest
        survey = kernel(_HERE / "row_stats.cu", "row_stats", dependent=True, VOCAB=vocab, **SURVEY)
        again = tops, sums, best, arrived, device.zeros(n, dtype=np.int32), largest
        self._survey, self._survey_plain, self._survey_again = (
            survey.bind(1, SURVEY["THREADS"], (logits, *rest))
            for rest in ((row_params, *args, 1, host_ids), (no_laws, *args, 0, host_ids), (row_params, *again, 0, 0))
        )
        draw = kernel(_HERE / "draw.cu", "draw", dependent=True, VOCAB=vocab, THREADS=_DRAW_THREADS)
        self._draw = draw.bind(1, _DRAW_THREADS, (logits, row_params, largest, best, arrived, ids, host_ids))
        shape = {"VOCAB": vocab, "THREADS": SELECT_THREADS, "N_CHUNKS": self._chunks}
        select = kernel(_HERE / "topk_topp.cu", "topk_topp", dependent=True, **shape)
        self._select = select.bind(1, SELECT_THREADS, (logits, row_params, tops, sums, largest, ids, host_ids))
        top = kernel(_HERE / "logprobs.cu", "logprobs", dependent=True, **shape, MAX_TOP=MOST_TOP)
        self._bind_find = lambda found: top.bind(1, SELECT_THREADS, (logits, row_params, tops, sums, largest, ids, found))

    def rows(self, n: int) -> Logits:
        """Return the first `n` rows of the latest forward."""
        return Logits(self, 0, n)

    def largest(self, n_rows: int, stream: Stream = None) -> None:
        """Launch only the search for the largest logit of the first rows; results go to `ids` and to the host."""
        self._survey_plain(stream, grid=(self._chunks, n_rows))

    def sample_rows(self, requests: Sequence[SampleRequest], n_rows: int) -> DeviceSampleResult:
        """Launch the sampling of tokens from some of the first `n_rows` rows."""
        if (latest := self._latest()) is not None:
            latest.wait()
        else:
            self._event.synchronize()
        stream = self.stream or device.current_stream()
        noisy = [request.params for request in requests if request.params.scale is not None]
        tells = any(request.params.n_top is not None for request in requests)
        edits = any(request.edits is not None for request in requests)
        if edits:
            self._edits.make(requests, n_rows, stream)
        masks = {request.first + i: words for request in requests for i, words in request.masks.items()}
        if noisy or tells or masks:
            self._describe(requests, n_rows, self._masks.upload(masks, stream))
            self._row_params.upload(n_rows, stream)
            if self._place is not None and any(isinstance(request.positions, LazyArray) for request in requests):
                self._place(stream, n_rows=n_rows)
            self.launch(noisy, n_rows, stream)
        else:
            self.largest(n_rows, stream)
        if edits:
            self._edits.undo(n_rows, stream)
        if tells:
            self._tell(n_rows, stream, anew=edits or bool(masks))
        self._event.record(stream)
        draws = DeviceSampleResult(self, requests, n_rows)
        self._latest = ref(draws)
        return draws

    def launch(self, row_params: Sequence[SampleParams], n_rows: int, stream: Stream = None) -> None:
        """Launch the kernels that rows with these parameters need; the parameters are on the device already."""
        self._survey(stream, grid=(self._chunks, n_rows))
        vocab = self.logits.shape[1]
        selected = [0 < params.top_k < vocab or params.top_p < 1 for params in row_params]
        if any(selected):
            self._select(stream, grid=n_rows)
        if not all(selected):
            self._draw(stream, grid=(max(8, min(self._blocks, _DRAW_BLOCKS // n_rows)), n_rows))

    def sampled(self, n_rows: int) -> tuple[list[int], NDArray[Any] | None]:
        """Wait for the latest samples; return the tokens, and records of log-probabilities if any were requested."""
        with device.device_errors("sampling"):
            self._event.synchronize()
        return self._host_ids[:n_rows].tolist(), None if self._found is None else self._found.host[:n_rows].copy()

    def candidates(self, rows: Sequence[int], row_params: Sequence[SampleParams], positions: Sequence[int]) -> Proposed:
        """Return candidate ids and scores, each (n, POOL), of some rows for positions of their sequences."""
        if self._proposing is None:
            self._proposing = Proposing(self.logits)
        with device.device_errors("candidates"):
            return self._proposing(rows, row_params, positions)

    def row(self, i: int) -> NDArray[np.float32]:
        """Copy a row of logits to the host; the next call overwrites the copy."""
        device.copy(self._row, self.logits[i], self.stream)
        self._event.record(self.stream or device.current_stream())
        with device.device_errors("logits"):
            self._event.synchronize()
        return self._row

    def _describe(self, requests: Sequence[SampleRequest], n_rows: int, masks: Mapping[int, int]) -> None:
        row_params = self._row_params.host
        row_params[:n_rows] = _NO_PARAMS
        for request in requests:
            rows = row_params[request.first : request.first + len(request.positions)]
            rows[:] = record(request.params)
            if self._place is None or not isinstance(request.positions, LazyArray):
                rows["position"] = request.positions
        for row, address in masks.items():
            row_params["mask"][row] = address

    def _tell(self, n_rows: int, stream: Any, *, anew: bool) -> None:
        """Launch the search for log-probabilities; they are those of the rows without edits and masks."""
        if self._found is None:
            self._found = Mirror(len(self.logits), FOUND)
            self._find: Bound = self._bind_find(self._found.device)
        if anew:
            self._survey_again(stream, grid=(self._chunks, n_rows))
        self._find(stream, grid=n_rows)
        self._found.download(n_rows, stream)


def _event() -> Any:
    import cupy

    return cupy.cuda.Event(disable_timing=True)
