"""Weights on the device, in tiles that tensor cores read; `quants.cuh` says how a tile lies."""

import math
from copy import copy
from pathlib import Path
from typing import Any

import cupy

from dflash.errors import KernelError
from dflash.kernels.formats.blocks import FORMATS
from dflash.kernels.formats.matrix import Matrix
from dflash.kernels.formats.types import BLOCKS
from dflash.kernels.gpu.jit import kernel

TILE_ROWS = 16

_REPACK = Path(__file__).with_name("repack.cu")
_AT_ONCE = 1 << 28


def tile_width(kind: str) -> int:
    """Weights of a row in a tile: 64 for plain numbers, else 256."""
    return 64 if BLOCKS[kind].elements == 1 else 256


def tile_bytes(kind: str) -> int:
    """Bytes of a tile: those of the file for 16 rows."""
    return TILE_ROWS * tile_width(kind) // BLOCKS[kind].elements * BLOCKS[kind].n_bytes


class PackedWeight:
    """A matrix on the device, or a stack of them; the last tiles of rows and columns are filled up with zeros.

    Parameters
    ----------
    matrix : Matrix (R, K) or (E, R, K)
        Of a native type; its rows are copied to the device some at a time.

    Attributes
    ----------
    data : uint8 (E * row tiles * tiles of a row * tile bytes,)
        The tiles, those of 16 rows one after the other; matrices of a stack follow each other.
    tiles_of_row : int
        How many tiles 16 rows take.
    row_bytes : int
        Bytes of a row in the file.
    stack_bytes : int
        Bytes from one matrix of a stack to the next, in `data`.
    type, shape, name
        As those of `matrix`.

    Raises
    ------
    KernelError
        If the type is none that kernels read.
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
        """Room for a matrix (R, K) or a stack (E, R, K), to be filled."""
        tiles = cls.__new__(cls)
        tiles._allocate(kind, shape, name)
        return tiles

    def rows(self, part: slice) -> "PackedWeight":
        """Some rows of a matrix, from a multiple of 16 on, where they lie."""
        start, stop, step = part.indices(self.shape[0])
        if len(self.shape) == 3 or start % TILE_ROWS or step != 1 or stop <= start:
            raise KernelError(f"{self.name}: can't take rows {start} to {stop} of {self.shape}: they begin at whole tiles")
        some = copy(self)
        some.shape = (stop - start, self.shape[1])
        some.data = self.data[start // TILE_ROWS * self._strip : -(-stop // TILE_ROWS) * self._strip]
        some.stack_bytes = some.data.nbytes
        return some

    def fill(self, rows: Any, start: int, n_rows: int, *, expert: int = 0, stream: Any = None) -> None:
        """Pack rows that are on the device; allocates nothing and waits for nothing.

        Parameters
        ----------
        rows : uint8 (n_rows * row_bytes,)
            As in the file.
        start : int
            The first of them, a multiple of 16.
        n_rows : int
            A multiple of 16 unless they are the last.
        expert : int
            Which matrix of a stack.
        stream : cupy.cuda.Stream, optional
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
            raise KernelError(f"{name}: can't be packed into tiles: {kind} {shape}")
        self.type, self.shape, self.name = kind, tuple(shape), name
        rows, width = shape[-2:]
        self.tiles_of_row = -(-width // tile_width(kind))
        self.row_bytes = width // BLOCKS[kind].elements * BLOCKS[kind].n_bytes
        self._strip = self.tiles_of_row * tile_bytes(kind)
        self.stack_bytes = -(-rows // TILE_ROWS) * self._strip
        self.data = cupy.zeros(math.prod(shape[:-2]) * self.stack_bytes, cupy.uint8)
        self._repack = kernel(_REPACK, "repack", QUANT=kind)

    def __repr__(self) -> str:
        return f"Tiles({self.name}: {self.type} {' x '.join(map(str, self.shape))})"
