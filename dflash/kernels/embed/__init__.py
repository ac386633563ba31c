"""Token embeddings from a packed table."""

import numpy as np
from numpy.typing import NDArray

from dflash.errors import KernelError
from dflash.kernels.embed import cpu
from dflash.kernels.formats import Matrix
from dflash.kernels.formats.cpu import step_bytes, unpack_function


def embed(ids: NDArray[np.int32], table: Matrix, out: NDArray[np.float32]) -> None:
    """Unpack the rows of an embedding table for some tokens.

    Parameters
    ----------
    ids : int32 (T,)
        Token ids, 0 to V - 1; the caller checks their range.
    table : Matrix (V, D)
        Embedding table of any type.
    out : float32 (T, D)
        Receives the embeddings; rows contiguous.

    Raises
    ------
    KernelError
        If `out` does not fit.

    Notes
    -----
    The values are exactly those of the file. Reads `row_bytes` bytes a token.
    """
    if out.dtype != np.float32 or out.shape != (len(ids), table.shape[1]) or (len(ids) and out.strides[1] != 4):
        raise KernelError(f"{table.name}: out must be float32 {(len(ids), table.shape[1])}, got {out.dtype} {out.shape}")
    if not table.native:
        for i, row in enumerate(ids):
            out[i] = table.rows(slice(row, row + 1)).unpacked()[0]
        return
    steps = table.shape[1] // step_bytes(table.type)[0]
    unpack = unpack_function(table.type).address
    ids = ids if ids.flags.writeable else ids.copy()  # numba would compile another kernel for read-only arrays
    cpu.embed(ids, table.address, table.row_bytes, steps, unpack, out.ctypes.data, out.strides[0])
