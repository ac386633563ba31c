"""Weights on the device, in tiles that tensor cores read; `quants.cuh` says how a tile lies."""

from pathlib import Path

import cupy

from dflash.errors import KernelError
from dflash.kernels.formats.matrix import Matrix
from dflash.kernels.formats.types import BLOCKS
from dflash.kernels.jit import kernel

TILE_ROWS = 16

_REPACK = Path(__file__).with_name("repack.cu")
_AT_ONCE = 1 << 28


def tile_width(kind: str) -> int:
    """Weights of a row in a tile: 64 for plain numbers, else 256."""
    return 64 if BLOCKS[kind].elements == 1 else 256


def tile_bytes(kind: str) -> int:
    """Bytes of a tile: those of the file for 16 rows."""
    return TILE_ROWS * tile_width(kind) // BLOCKS[kind].elements * BLOCKS[kind].n_bytes


class Tiles:
    """A matrix on the device; the last tiles of rows and columns are filled up with zeros.

    Parameters
    ----------
    matrix : Matrix (R, K)
        Of a native type; its rows are copied to the device some at a time.

    Attributes
    ----------
    data : uint8 (row tiles * tiles of a row * tile bytes,)
        The tiles, those of 16 rows one after the other.
    tiles_of_row : int
        How many tiles 16 rows take.
    type, shape, name
        As those of `matrix`.

    Raises
    ------
    KernelError
        If `matrix` is of a type that kernels don't read.
    """

    def __init__(self, matrix: Matrix) -> None:
        if not matrix.native or len(matrix.shape) != 2:
            raise KernelError(f"{matrix.name}: can't be packed into tiles: {matrix!r}")
        self.type, self.shape, self.name = matrix.type, matrix.shape, matrix.name
        rows, width = matrix.shape
        self.tiles_of_row = -(-width // tile_width(self.type))
        strip = self.tiles_of_row * tile_bytes(self.type)
        self.data = cupy.zeros(-(-rows // TILE_ROWS) * strip, cupy.uint8)
        repack = kernel(_REPACK, "repack", QUANT=self.type)
        step = max(1, _AT_ONCE // (matrix.row_bytes * TILE_ROWS)) * TILE_ROWS
        for start in range(0, rows, step):
            part = cupy.asarray(matrix.data[start : start + step])
            repack(
                grid=(self.tiles_of_row, -(-len(part) // TILE_ROWS)),
                block=128,
                args=(part, self.data[start // TILE_ROWS * strip :], len(part), width, matrix.row_bytes),
            )

    def __repr__(self) -> str:
        return f"Tiles({self.name}: {self.type} {' x '.join(map(str, self.shape))})"
