"""Unpacking of embedding rows in numba."""

from dflash.kernels.cpu.jit import inline
from dflash.kernels.linear.tiles import call_unpack


@inline
def embed(ids, table, row_bytes, steps, unpack, out, out_bytes):
    """Unpack the rows `ids` of the table at address `table` to address `out`."""
    for i in range(len(ids)):
        call_unpack(unpack, table + ids[i] * row_bytes, 0, steps, out + i * out_bytes, 0)
