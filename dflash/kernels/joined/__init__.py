"""Ops on few rows, joined to one parallel launch: for one token, a launch takes longer than a small op."""

from typing import Any

import numpy as np
from numba import get_num_threads
from numpy.typing import NDArray

from dflash.kernels.arrays import check
from dflash.kernels.conv.memory import ConvMemory
from dflash.kernels.delta import task_shape
from dflash.kernels.delta.memory import DeltaMemory
from dflash.kernels.formats import Matrix
from dflash.kernels.formats.cpu import step_bytes, unpack_function
from dflash.kernels.joined import cpu, table
from dflash.kernels.joined.attention import attend_function, rotate_function
from dflash.kernels.joined.delta import delta_function
from dflash.kernels.linear import PackedLinear
from dflash.kernels.linear.cpu import COLUMNS, TOKENS
from dflash.kernels.ragged import Ragged

__all__ = ["MAX_ROWS", "Joined"]

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Cache = NDArray[np.float32] | NDArray[np.uint16] | NDArray[np.int8]

MAX_ROWS = 8
"""Most rows of a launch: for as many, separate launches of the demo take longer, on one thread too."""


class Joined:
    """Ops on fixed arrays in one launch, for up to `MAX_ROWS` rows, with the bits of the separate ops.

    Ops are added once, in order, and run by a call; arrays are those of the separate ops, with at least `MAX_ROWS` rows.

    Parameters
    ----------
    eps : float
        Added to the mean of the squares by all norms.
    """

    def __init__(self, eps: float) -> None:
        self._eps = float(eps)
        self._stages: list[NDArray[np.int64]] = []
        self._plans = [np.empty((0, COLUMNS), np.int64)]
        self._tables: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
        self._kept: list[Any] = []

    def embed(self, weight: Matrix, out: Floats) -> None:
        """Add `dflash.kernels.embed.embed` of the tokens of a call, from a native matrix."""
        self._kept.append(weight)
        unpack, steps = unpack_function(weight.type).address, weight.shape[1] // step_bytes(weight.type)[0]
        self._add(table.EMBED, weight.address, out, weight.shape[1], weight.row_bytes, steps, unpack)

    def angles(self, inv_freq: Floats, cos: Floats, sin: Floats) -> None:
        """Add `dflash.kernels.rope.angles` of the positions of a call."""
        self._add(table.ANGLES, inv_freq, cos, len(inv_freq), sin)

    def rms_norm(self, x: Floats, weight: Floats, out: Floats) -> None:
        """Add `dflash.kernels.norm.rms_norm`."""
        self._add(table.NORM, x, out, len(weight), weight)

    def gated_rms_norm(self, x: Floats, z: Floats, weight: Floats, out: Floats) -> None:
        """Add `dflash.kernels.norm.gated_rms_norm`."""
        self._add(table.GATED_NORM, x, out, len(weight), weight, x.shape[1], z)

    def linear(self, product: PackedLinear) -> None:
        """Add a multiply with packed weights, which must be native."""
        first, plan = sum(map(len, self._plans)), product.plan(1).copy()
        self._plans.append(plan)
        self._kept.append(product)
        self._add(table.MULTIPLY, 0, 0, 0, first, first + len(plan))

    def causal_conv(self, x: Floats, taps: Floats, memory: ConvMemory, out: Floats) -> None:
        """Add `dflash.kernels.conv.causal_conv`."""
        sizes = len(memory.tail), memory.n_pending, len(taps)
        self._add(table.CONV, x, out, taps.shape[1], taps, memory.tail, memory.inputs, *sizes)

    def gated_delta(
        self, y: Floats, alpha: Floats, beta: Floats, ssm_a: Floats, dt_bias: Floats, memory: DeltaMemory, out: Floats
    ) -> None:
        """Add `dflash.kernels.delta.gated_delta`."""
        groups, heads, width, values = memory.sizes
        _, size = task_shape(memory, 1)
        arrays = alpha, beta, ssm_a, dt_bias, memory.state, memory.k, memory.u, memory.decay
        sizes = len(memory.state), memory.n_pending, groups, heads, values, memory.head_run, size
        self._add(table.DELTA, y, out, width, delta_function(width).address, *arrays, *sizes)

    def rotate(
        self, query: Floats, key: Floats, value: Floats, weights: tuple[Floats | None, ...], tables: tuple[Floats, Floats],
        *, q: Floats, k: Cache, v: Cache,
    ) -> None:  # fmt: skip
        """Add `dflash.kernels.rope.rotate`, with the gains of queries and keys, the bias, and the tables."""
        function = rotate_function(k.dtype.str, v.dtype.str).address
        eps = int(np.float64(self._eps).view(np.int64))
        sizes = tables[0].shape[1], query.shape[1], eps
        arrays = query, q, q.shape[2], function, *_caches(q, k, v), key, value, *weights, *tables
        self._add(table.ROTATE, *arrays, *sizes)

    def attend(self, q: Floats, k: Cache, v: Cache, *, out: Floats, gate: Floats | None) -> None:
        """Add `dflash.kernels.attention.attend` without a window; all pages of a KV head are read by one thread."""
        function = attend_function(k.dtype.str, v.dtype.str).address
        gates = (0, 0) if gate is None else (gate, 1)
        self._add(table.ATTEND, q, out, q.shape[2], function, *_caches(q, k, v), *gates)

    def __call__(self, rows: Ragged, n: int, tokens: Ints, positions: Ints) -> None:
        """Run all ops for the first `n` rows of their arrays, which have `tokens` and `positions`, int32 (n,)."""
        assert n <= MAX_ROWS, "`MAX_ROWS` bounds the caller's rows"
        if self._tables is None:
            self._tables = np.stack(self._stages), np.concatenate(self._plans)
        plans = self._tables[1]
        if len(plans) and plans[0, TOKENS] != n:
            plans[:, TOKENS] = n
        cpu.run(*self._tables, get_num_threads(), self._eps, tokens, positions, *rows)

    def _add(self, kind: int, *columns: Any) -> None:
        row = np.zeros(table.COLUMNS, np.int64)
        row[0] = kind
        for i, value in enumerate(columns):
            if isinstance(value, np.ndarray):
                check("joined", value, value.shape, value.dtype)
                row[1 + i] = value.ctypes.data
            else:
                row[1 + i] = 0 if value is None else value
        self._kept.append(columns)
        self._stages.append(row)


def _caches(q: Floats, k: Cache, v: Cache) -> tuple[Any, ...]:
    """Return the columns of rotation and attention that describe the caches and the query heads."""
    return k, v, len(k), k.shape[2], k.shape[3], v.shape[3], q.shape[1]
