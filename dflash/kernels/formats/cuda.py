"""Weights on the device, in tiles for the tensor cores; `quants.cuh` defines the layout of a tile."""

import math
from copy import copy
from pathlib import Path

import cupy

from dflash.errors import KernelError
from dflash.kernels.arrays import GpuArray, Stream
from dflash.kernels.formats.format import FORMATS
from dflash.kernels.formats.matrix import Matrix
from dflash.kernels.formats.types import BLOCKS
from dflash.kernels.gpu.jit import kernel

TILE_ROWS = 16

_REPACK = Path(__file__).with_name("repack.cu")
_AT_ONCE = 1 << 28  # bytes of rows that are copied and packed at a time


def tile_width(kind: str) -> int:
    """Return the weights of a row in a tile: 64 for unquantised types, else 256."""
    return 64 if BLOCKS[kind].elements == 1 else 256


def tile_bytes(kind: str) -> int:
    """Return the bytes of a tile: as many as its 16 rows take in the file."""
    return TILE_ROWS * tile_width(kind) // BLOCKS[kind].elements * BLOCKS[kind].n_bytes


class PackedWeight:
    """A matrix on the device, or a stack of matrices; the last tiles of rows and columns are padded with zeros.

    matrix: matrix of a native type; its rows are copied to the device in parts.
    data: uint8 (E * row tiles * tiles of a row * tile bytes,); tiles, row by row of tiles; the matrices of a stack are
        contiguous.
    tiles_of_row: number of tiles in 16 rows.
    row_bytes: bytes of a row in the file.
    stack_bytes: bytes from one matrix of a stack to the next, in `data`.
    whole_rows: rows of the matrix of which this is a part, or its own; they determine the K slices of a multiply.
    """

    def __init__(self, matrix: Matrix) -> None:
        self._allocate(matrix.type, matrix.shape, matrix.name)
        rows = matrix.shape[-2]
        step = max(1, _AT_ONCE // (matrix.row_bytes * TILE_ROWS)) * TILE_ROWS
        for expert in range(math.prod(self.shape[:-2])):
            data = matrix.data[expert] if len(self.shape) == 3 else matrix.data
            for start in range(0, rows, step):
                part = cupy.asarray(data[start : start + step])
                self.fill(part.reshape(-1), start, len(part), expert=expert)

    @classmethod
    def empty(cls, kind: str, shape: tuple[int, ...], name: str = "weight") -> "PackedWeight":
        """Allocate a matrix (R, K) or a stack (E, R, K), to be filled by `fill`."""
        tiles = cls.__new__(cls)
        tiles._allocate(kind, shape, name)
        return tiles

    def rows(self, part: slice) -> "PackedWeight":
        """Return a view of some rows of a matrix; the first must be a multiple of 16."""
        start, stop, step = part.indices(self.shape[0])
        if len(self.shape) == 3 or start % TILE_ROWS or step != 1 or stop <= start:
            raise KernelError(f"{self.name}: rows {start} to {stop} of {self.shape} must begin at a multiple of {TILE_ROWS}")
        some = copy(self)
        some.shape, some.whole_rows = (stop - start, self.shape[1]), stop - start
        some.data = self.data[start // TILE_ROWS * self._strip : -(-stop // TILE_ROWS) * self._strip]
        some.stack_bytes = some.data.nbytes
        return some

    def fill(self, rows: GpuArray, start: int, n_rows: int, *, expert: int = 0, stream: Stream = None) -> None:
        """Pack rows that are on the device; does not allocate or synchronise.

        rows: uint8 (n_rows * row_bytes,); rows as in the file.
        start: first row, a multiple of 16.
        n_rows: number of rows, a multiple of 16 unless they are the last ones.
        """
        if start % TILE_ROWS or start + n_rows > self.shape[-2]:
            raise KernelError(f"{self.name}: can't fill rows {start} to {start + n_rows} of {self.shape[-2]}")
        at = expert * self.stack_bytes + start // TILE_ROWS * self._strip
        self._repack(
            grid=(self.tiles_of_row, -(-n_rows // TILE_ROWS)),
            block=128,
            args=(rows, self.data[at:], n_rows, self.shape[-1], self.row_bytes),
            stream=stream,
        )

    def _allocate(self, kind: str, shape: tuple[int, ...], name: str) -> None:
        if kind not in FORMATS or len(shape) not in (2, 3):
            raise KernelError(f"{name}: {kind} {shape} can't be packed into tiles; wanted a native type and 2 or 3 axes")
        self.type, self.shape, self.name = kind, tuple(shape), name
        rows, width = shape[-2:]
        self.whole_rows = rows
        self.tiles_of_row = -(-width // tile_width(kind))
        self.row_bytes = width // BLOCKS[kind].elements * BLOCKS[kind].n_bytes
        self._strip = self.tiles_of_row * tile_bytes(kind)
        self.stack_bytes = -(-rows // TILE_ROWS) * self._strip
        self.data = cupy.zeros(math.prod(shape[:-2]) * self.stack_bytes, cupy.uint8)
        self._repack = kernel(_REPACK, "repack", QUANT=kind)

    def __repr__(self) -> str:
        return f"Tiles({self.name}: {self.type} {' x '.join(map(str, self.shape))})"
