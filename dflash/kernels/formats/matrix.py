"""A weight matrix in the packed form of the file."""

import numpy as np
from numpy.typing import NDArray

from dflash.errors import KernelError
from dflash.kernels.formats.format import FORMATS
from dflash.kernels.formats.lanes import LANES
from dflash.kernels.formats.types import BLOCKS

Bytes = NDArray[np.uint8]


class Matrix:
    """A matrix, or a stack of matrices, whose rows are blocks of a GGUF type.

    data: uint8 (R, row_bytes) or (E, R, row_bytes); rows, contiguous within a matrix. The array is referenced, not copied,
        so a memory-mapped file is read on use.
    kind: name of the GGUF type, a key of `BLOCKS`.
    shape: (R, K) or (E, R, K): matrices of the stack, rows, weights of a row.
    native: kernels read the type directly; other types are unpacked by the `gguf` package on use.
    """

    def __init__(self, data: Bytes, kind: str, name: str = "weight") -> None:
        block = BLOCKS[kind]
        in_order = data.strides[-1] == 1 and data.strides[-2] == data.shape[-1]
        if data.dtype != np.uint8 or not in_order or data.shape[-1] % block.n_bytes:
            raise KernelError(
                f"{name}: rows of {kind} must be contiguous bytes in blocks of {block.n_bytes}, "
                f"got {data.dtype} {data.shape}"
            )
        width = data.shape[-1] // block.n_bytes * block.elements
        if width % LANES:
            raise KernelError(f"{name}: rows must be a multiple of {LANES} weights, got {width}")
        self.data, self.type, self.name = data, kind, name
        self.shape = (*data.shape[:-1], width)
        self.native = kind in FORMATS
        self.address = data.ctypes.data

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.data.shape[-1]

    @property
    def stack_bytes(self) -> int:
        """Bytes from one matrix of a stack to the next."""
        return self.data.strides[0]

    def __getitem__(self, i: int) -> "Matrix":
        """Return one matrix of a stack."""
        return Matrix(self.data[i], self.type, f"{self.name}[{i}]")

    def rows(self, part: slice) -> "Matrix":
        """Return a view of some rows of the matrix, or of every matrix of a stack."""
        return Matrix(self.data[..., part, :], self.type, self.name)

    def gathered(self, rows: NDArray[np.intp], name: str) -> "Matrix":
        """Return a copy of some rows of a matrix, in the given order, with a name of their own."""
        return Matrix(self.data[rows], self.type, name)

    def unpacked(self) -> NDArray[np.float32]:
        """Return all weights as float32, for any type."""
        if self.native:
            return FORMATS[self.type].unpack(self.data)
        import gguf

        return gguf.quants.dequantize(np.ascontiguousarray(self.data), gguf.GGMLQuantizationType[self.type])

    def __repr__(self) -> str:
        return f"Matrix({self.name}: {self.type} {' x '.join(map(str, self.shape))})"
