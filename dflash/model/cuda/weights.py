"""Weights of a file on the device; each is uploaded once and repacked on arrival."""

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from dflash.kernels import conv
from dflash.kernels.arrays import GpuArray, Stream
from dflash.kernels.formats import BLOCKS, Matrix
from dflash.kernels.formats.cuda import TILE_ROWS, PackedWeight
from dflash.kernels.gpu import device
from dflash.kernels.gpu.staging import Staging
from dflash.model.weights import HostTensors

H = TypeVar("H", bound=HostTensors)


class DeviceWeights(Generic[H]):
    """Tensors of a checked file, or of one of its blocks, for the kernels of a GPU.

    host: weights in host memory; available as an attribute of this name.
    staging: uploads to the device. Uploads of weights that were returned may still be in progress.
    expressed: file types without a kernel, each with the type that replaces it on the device.
    """

    def __init__(self, host: H, staging: Staging) -> None:
        self.expressed: dict[str, str] = {}
        self.host, self._staging = host, staging
        self._made: dict[str, Any] = {}
        self._prefix = ""

    def block(self: "DeviceWeights[Any]", i: int) -> "DeviceWeights[Any]":
        """Return the weights of block i, named without ``blk.i.``."""
        weights = copy(self)
        weights.host, weights._prefix = self.host.block(i), f"blk.{i}."
        return weights

    @property
    def n_bytes(self) -> int:
        """Bytes of all weights that were requested so far."""
        return sum(_size(made) for made in self._made.values())

    def matrix(self, name: str) -> PackedWeight:
        """Return a matrix, or a stack of matrices."""
        return self._once(name, lambda: self._packed(self.host.matrix(name)))

    def stacks(self, names: Sequence[str]) -> list[tuple[PackedWeight, list[str]]]:
        """Return matrices of one width stacked by type, the rows of one after those of the other.

        Call this before any of the matrices is requested by itself.
        """
        of_type: dict[str, list[Matrix]] = {}
        called: dict[str, list[str]] = {}
        for name in names:
            matrix = self.host.matrix(name)
            kind = matrix.type if matrix.native and matrix.shape[0] % TILE_ROWS == 0 else name
            of_type.setdefault(kind, []).append(matrix)
            called.setdefault(kind, []).append(name)
        return [(self._stack(found, called[kind]), called[kind]) for kind, found in of_type.items()]

    def _stack(self, matrices: Sequence[Matrix], names: Sequence[str]) -> PackedWeight:
        if len(matrices) == 1:
            return self.matrix(names[0])
        ends = np.cumsum([matrix.shape[0] for matrix in matrices]).tolist()
        tall = PackedWeight.empty(matrices[0].type, (ends[-1], matrices[0].shape[1]), names[0])
        for matrix, name, end in zip(matrices, names, ends, strict=True):
            part = tall.rows(slice(end - matrix.shape[0], end))
            self._fill(part, matrix, 0)
            self._made[self._prefix + name] = part
        return tall

    def halves(self, name: str) -> PackedWeight:
        """Return a matrix, converted from float32 to float16; only for multiplies, which round it anyway."""
        return self._once(f"{name} in halves", lambda: self._packed(_rounded(self.host.matrix(name))))

    def columns(self, name: str, n: int) -> tuple[PackedWeight, ...]:
        """Return a matrix cut into `n` parts of equal width."""
        return self._once(f"{name} in {n}", lambda: tuple(map(self._packed, _columns(self.host.matrix(name), n))))

    def __contains__(self: "DeviceWeights[Any]", name: str) -> bool:
        return name in self.host

    def vector(self, name: str, *, scale: float = 1.0) -> GpuArray:
        """Return a small tensor as float32, times `scale`."""
        if scale != 1:
            return self._once(f"{name} * {scale}", lambda: device.array(self.host.vector(name) * np.float32(scale)))
        return self._once(name, lambda: device.array(self.host.vector(name)))

    def joined(self, names: Sequence[str]) -> GpuArray:
        """Return small tensors, one after the other."""
        return self._once("+".join(names), lambda: device.array(np.concatenate([self.host.vector(name) for name in names])))

    def taps(self, name: str) -> GpuArray:
        """Return the weight of a convolution, transposed so that channels are contiguous."""
        return self._once(name, lambda: device.array(conv.taps(self.host.vector(name))))

    def plain(self, name: str) -> GpuArray:
        """Return a matrix of any type as float32."""
        return self._once(f"{name} plain", lambda: device.array(self.host.matrix(name).unpacked()))

    def scaled(self, name: str, gain: str, scale: float) -> GpuArray:
        """Return a matrix of any type as float32, its columns times a small tensor and `scale`."""

        def made() -> GpuArray:
            return device.array(self.host.matrix(name).unpacked() * (self.host.vector(gain) * np.float32(scale)))

        return self._once(f"{name} * {gain}", made)

    def _once(self, name: str, make: Callable[[], Any]) -> Any:
        key = self._prefix + name
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def _packed(self, matrix: Matrix) -> PackedWeight:
        kind = matrix.type
        if not matrix.native:
            kind = self.expressed[matrix.type] = "F16"
        tiles = PackedWeight.empty(kind, matrix.shape, matrix.name)
        if matrix.data.ndim == 3 and matrix.data.flags.c_contiguous and matrix.shape[1] % TILE_ROWS == 0:
            # no matrix of the stack needs padding, so that its tiles are those of one tall matrix
            tall = copy(tiles)
            tall.shape = (matrix.shape[0] * matrix.shape[1], matrix.shape[2])
            self._fill(tall, Matrix(matrix.data.reshape(-1, matrix.row_bytes), matrix.type, matrix.name), 0)
        elif matrix.data.ndim == 3:
            for number in range(matrix.shape[0]):
                self._fill(tiles, matrix[number], number)
        else:
            self._fill(tiles, matrix, 0)
        return tiles

    def _fill(self, tiles: PackedWeight, matrix: Matrix, number: int) -> None:
        """Upload the rows of a matrix, which has index `number` in a stack."""
        step = max(1, self._staging.room // (tiles.row_bytes * TILE_ROWS)) * TILE_ROWS
        for start in range(0, matrix.shape[0], step):
            part = matrix.rows(slice(start, start + step))
            rows = part.data if matrix.native else _as_halves(part)
            n = len(rows)
            self._staging.send(rows, partial(_fill_flat, partial(tiles.fill, start=start, n_rows=n, expert=number)))


def _fill_flat(fill: Callable[..., None], raw: GpuArray, stream: Stream) -> None:
    fill(raw.reshape(-1), stream=stream)


def _columns(matrix: Matrix, n: int) -> list[Matrix]:
    values: NDArray[Any] = matrix.data
    kind = matrix.type
    if matrix.shape[1] // n % BLOCKS[kind].elements:
        values, kind = matrix.unpacked(), "F32"
    parts = [np.ascontiguousarray(part).view(np.uint8) for part in np.split(values, n, axis=1)]
    return [Matrix(part, kind, f"{matrix.name} part {i}") for i, part in enumerate(parts)]


def _rounded(matrix: Matrix) -> Matrix:
    return Matrix(_as_halves(matrix), "F16", matrix.name) if matrix.type == "F32" else matrix


def _as_halves(matrix: Matrix) -> NDArray[np.uint8]:
    """Return rows of any type as the bytes of float16."""
    return np.ascontiguousarray(matrix.unpacked().astype(np.float16)).view(np.uint8)


def _size(made: Any) -> int:
    parts: Iterable[Any] = made if isinstance(made, tuple) else (made,)
    return sum(part.data.nbytes if isinstance(part, PackedWeight) else part.nbytes for part in parts)
