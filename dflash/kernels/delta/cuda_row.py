"""The mixer of a linear-attention layer on a GPU for one row of each of few sequences."""

from pathlib import Path
from typing import Any

from dflash.kernels.arrays import Stream
from dflash.kernels.delta.memory import DeltaMemory
from dflash.kernels.gpu.jit import kernel

_PARENT, _FIRST = 11, 10  # arguments of step.cu that one row does not need


class OneRow:
    """Convolution, delta rule and gated norm for one pending row of each sequence, with the bits of `DeltaStep`.

    In use for fewer than `LEAST_SEQUENCES` sequences; `SingleRows` is for more.

    arguments, constants, memory, parts: as for `SingleRows`; `parts` is its `split`.
    fused: the norm is part of the launch of step.cu; else it is that of gated_norm.cu.

    Latency-bound: less than half of the machine code of step.cu, and no pipeline between warps.
    """

    def __init__(
        self, arguments: tuple[Any, ...], constants: dict[str, Any], memory: DeltaMemory, parts: int, *, fused: bool
    ) -> None:
        _, n_heads, width, n_values = memory.sizes
        split, parts = (parts, parts) if fused else (1, 1)
        own = n_values // split
        macros = constants | {"SPLIT": split, "NORM_PARTS": parts, "SEPARATE_NORM": int(not fused)}
        run = kernel(Path(__file__).parent / "step_row.cu", "step_row", dependent=True, **macros)
        given = [argument for i, argument in enumerate(arguments[:-1]) if i not in (_PARENT, _FIRST)]
        self._grid = split, n_heads
        self._run = run.bind((*self._grid, 1), threads_of(own, width), given)

    def __call__(self, sequences: int, stream: Stream = None) -> None:
        """Run for up to `sequences` sequences."""
        self._run(stream, grid=(*self._grid, sequences))


def threads_of(own: int, width: int) -> int:
    """Return the threads of a block with `own` value rows and keys of `width` elements, as in step_row.cu."""
    state = 4 * own
    return state + 32 + (32 * -(-own // 32) if 2 * width + own > state else 0)
