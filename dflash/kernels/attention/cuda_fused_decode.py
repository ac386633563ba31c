"""Norm, rotation, append and attention of one pending row in one launch."""

from pathlib import Path
from typing import Self

from dflash.kernels.arrays import Stream
from dflash.kernels.attention.cuda import Attend, tiles
from dflash.kernels.gpu.jit import kernel
from dflash.kernels.rope.cuda import Rotate

_HERE = Path(__file__).parent
_THREADS = 512  # of a block, as in decode_row_hopper.cu


class RotateAttend:
    """`Rotate`, then `Attend`, of a pass of one row: two launches in place of three, with the same bits.

    attend: of the same batch and cache, for which `fits` is true.

    The batch must be complete, and what earlier passes have written to the cache must be there, when the launch before this
    one starts: blocks read both while that one runs. The rotated queries are not written.

    Latency-bound for short texts, else as `Attend`.
    """

    def __init__(self, rotate: Rotate, attend: Attend) -> None:
        self._attend = attend
        k, v = attend.arrays[1:]
        cut, batch = tiles(attend.group, attend.group, hopper=True), attend.batch
        constants = {name: attend.constants[name] for name in ("HEAD_DIM", "GROUP_SIZE", "KV_HEADS")} | cut.constants()
        constants |= {"MAX_SPLITS": attend.max_splits, "ROTARY_PAIRS": rotate.inputs[-1].shape[-1]}
        constants |= {"QUERY_STRIDE": attend.width * (2 if rotate.gated else 1)} | rotate.of_heads
        made = kernel(_HERE / "decode_row_hopper.cu", "decode_row_hopper", dependent=True, **constants)
        rows = batch.counts, batch.length, batch.pages, batch.max_pages
        args = *rotate.inputs, rotate.eps, *attend.inputs[1:], k, v, *rows, *attend.partial, rotate.bias
        self._launch = made.bind(attend.kv * attend.max_splits, _THREADS, args, cut.shared(attend.width))

    @classmethod
    def of(cls, rotate: Rotate, attend: Attend) -> Self | None:
        """Return the two ops as one, if there is a kernel for them: on Hopper, over a float16 cache of this layer."""
        halves = attend.hopper and not (attend.exact or attend.quantized)
        own = rotate.inputs[1] is not None and not rotate.value_norm
        return cls(rotate, attend) if halves and own and not attend.linked else None

    def __call__(self, stream: Stream = None) -> None:
        """Run for the first row."""
        self._launch(stream)
        self._attend.combine(1, stream)
