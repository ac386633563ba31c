"""A batch in device arrays at fixed addresses, so that a captured graph reads the batch of each replay."""

from types import SimpleNamespace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dflash.errors import KernelError
from dflash.kernels.gpu.buffers import padded, parts_of
from dflash.kernels.ragged import PENDING, Ragged

_RING = 4  # pinned buffers, so that an upload need not wait for the previous one


class DeviceBatch:
    """Device copy of a `Ragged` batch, with its tokens and positions; filled by `upload`.

    Parameters
    ----------
    rows, sequences, pages : int
        Capacity: rows, sequences, and pages of a sequence.

    Attributes
    ----------
    counts : int32 (2,)
        Number of rows and of sequences. Entries of the other arrays beyond these counts are stale.
    tokens, position, sequence, parent, depth : int32 (rows,)
    first : int32 (sequences + 1,)
    length, slot, whole, n_kept, side : int32 (sequences,)
    kept : int32 (sequences, PENDING)
    pages : int32 (sequences, pages)
        As in `Ragged`; `position` is ``length + depth``. All are CuPy arrays.
    """

    counts: Any
    tokens: Any
    position: Any
    sequence: Any
    parent: Any
    depth: Any
    first: Any
    length: Any
    slot: Any
    whole: Any
    n_kept: Any
    side: Any
    kept: Any
    pages: Any

    def __init__(self, rows: int, sequences: int, pages: int) -> None:
        import cupy

        self.max_rows, self.max_sequences, self.max_pages = rows, sequences, pages
        shapes: dict[str, tuple[int, ...]] = {
            "counts": (2,),
            "first": (sequences + 1,),
            **dict.fromkeys(("length", "slot", "whole", "n_kept", "side"), (sequences,)),
            **dict.fromkeys(("tokens", "position", "sequence", "parent", "depth"), (rows,)),
            "kept": (sequences, PENDING),
            "pages": (sequences, pages),
        }
        self._before_pages = sum(padded(shape) for name, shape in shapes.items() if name != "pages")
        total = self._before_pages + sequences * pages
        self._device = cupy.zeros(total, np.int32)
        for name, part in parts_of(self._device, shapes).items():
            setattr(self, name, part)
        self._ring: list[tuple[SimpleNamespace, int, Any]] = []
        for _ in range(_RING):
            memory = cupy.cuda.alloc_pinned_memory(4 * total)
            host = np.frombuffer(memory, np.int32, total)
            host[:] = 0
            views = SimpleNamespace(**parts_of(host, shapes))
            self._ring.append((views, host.ctypes.data, cupy.cuda.Event(disable_timing=True)))
        self._next = 0

    @classmethod
    def of(cls, batch: Ragged, tokens: NDArray[np.int32] | None = None) -> Self:
        """Return a `DeviceBatch` of exactly the size of a batch, filled with it."""
        here = cls(len(batch.sequence), len(batch.slot), batch.pages.shape[1])
        here.upload(np.zeros(here.max_rows, np.int32) if tokens is None else tokens, batch)
        return here

    def upload(self, tokens: NDArray[np.int32], batch: Ragged, stream: Any = None) -> None:
        """Copy the description of the next pass to the device, with one asynchronous copy.

        Parameters
        ----------
        tokens : int32 (N,)
        batch : Ragged
            Batch of N rows.
        stream : Stream, optional
            Stream of the pass; the current one if None.

        Raises
        ------
        KernelError
            If the batch exceeds the capacity in rows, sequences or pages.
        """
        import cupy

        n, s = len(tokens), len(batch.slot)
        width = batch.pages.shape[1]
        if n > self.max_rows or s > self.max_sequences or width > self.max_pages:
            room = self.max_rows, self.max_sequences, self.max_pages
            raise KernelError(f"batch: {n} rows of {s} sequences with {width} pages exceed the capacity {room}")
        host, address, done = self._ring[self._next]
        self._next = (self._next + 1) % _RING
        done.synchronize()
        host.counts[0], host.counts[1] = n, s
        host.first[: s + 1] = batch.first
        host.length[:s] = batch.length
        host.slot[:s] = batch.slot
        host.whole[:s] = batch.whole
        host.n_kept[:s] = batch.n_kept
        host.side[:s] = batch.side
        host.kept[:s] = batch.kept
        host.tokens[:n] = tokens
        host.sequence[:n] = batch.sequence
        host.parent[:n] = batch.parent
        host.depth[:n] = batch.depth
        np.add(batch.length[batch.sequence], batch.depth, out=host.position[:n])
        host.pages[:s, :width] = batch.pages
        stream = stream or cupy.cuda.get_current_stream()
        n_bytes = 4 * (self._before_pages + (s - 1) * self.max_pages + width)
        runtime = cupy.cuda.runtime
        runtime.memcpyAsync(self._device.data.ptr, address, n_bytes, runtime.memcpyHostToDevice, stream.ptr)
        done.record(stream)

    def clear(self) -> None:
        """Describe a pass without rows; launches that read it do nothing."""
        self.counts.fill(0)


BatchArrays = DeviceBatch | SimpleNamespace
"""A `DeviceBatch`, or arrays of the same names that a kernel writes."""
