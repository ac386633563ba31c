"""A batch in device arrays at fixed addresses, so that a captured graph reads the batch of each replay."""

from copy import copy
from types import SimpleNamespace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dflash.errors import KernelError
from dflash.kernels.arrays import GpuArray, Stream
from dflash.kernels.gpu.buffers import DeviceArrays, padded
from dflash.kernels.ragged import PENDING, Ragged

_OF_ROWS = "tokens", "position", "sequence", "parent", "depth"


class DeviceBatch:
    """Device copy of a `Ragged` batch, with its tokens and positions; filled by `upload`.

    rows, sequences, pages: capacity: rows, sequences, and pages of a sequence.
    counts: int32 (2,); number of rows and of sequences. Entries of the other arrays beyond these counts are stale.
    tokens, position, sequence, parent, depth: int32 (rows,)
    row_starts: int32 (sequences + 1,)
    length, slot, prefill, n_accepted, buffer: int32 (sequences,)
    accepted: int32 (sequences, PENDING)
    pages: int32 (sequences, pages); as in `Ragged`; `position` is ``length + depth``. All are CuPy arrays.
    """

    counts: GpuArray
    tokens: GpuArray
    position: GpuArray
    sequence: GpuArray
    parent: GpuArray
    depth: GpuArray
    row_starts: GpuArray
    length: GpuArray
    slot: GpuArray
    prefill: GpuArray
    n_accepted: GpuArray
    buffer: GpuArray
    accepted: GpuArray
    pages: GpuArray

    def __init__(self, rows: int, sequences: int, pages: int) -> None:
        self.max_rows, self.max_sequences, self.max_pages = rows, sequences, pages
        shapes: dict[str, tuple[int, ...]] = {
            "counts": (2,),
            "row_starts": (sequences + 1,),
            **dict.fromkeys(("length", "slot", "prefill", "n_accepted", "buffer"), (sequences,)),
            **dict.fromkeys(_OF_ROWS, (rows,)),
            "accepted": (sequences, PENDING),
            "pages": (sequences, pages),
        }
        self._before_pages = sum(padded(shape) for name, shape in shapes.items() if name != "pages")
        self._arrays, self._n_words = DeviceArrays(**shapes), 0
        for name in shapes:
            setattr(self, name, getattr(self._arrays, name))

    @classmethod
    def of(cls, batch: Ragged, tokens: NDArray[np.int32] | None = None) -> Self:
        """Return a `DeviceBatch` of exactly the size of a batch, filled with it."""
        here = cls(len(batch.sequence), len(batch.slot), batch.pages.shape[1])
        here.upload(np.zeros(here.max_rows, np.int32) if tokens is None else tokens, batch)
        return here

    def first_rows(self, n: int) -> Self:
        """Return the same batch for launches of at most `n` rows; its arrays of rows are views."""
        some = copy(self)
        some.max_rows = n
        for name in _OF_ROWS:
            setattr(some, name, getattr(self, name)[:n])
        return some

    def upload(self, tokens: NDArray[np.int32] | GpuArray, batch: Ragged, stream: Stream = None) -> None:
        """Copy the description of the next pass to the device, asynchronously, with one launch.

        tokens: int32 (N,); in host memory, or on the device, where earlier launches may still be writing them.
        stream: stream of the pass; the current one if None.
        """
        n, s = len(tokens), len(batch.slot)
        width = batch.pages.shape[1]
        if n > self.max_rows or s > self.max_sequences or width > self.max_pages:
            room = self.max_rows, self.max_sequences, self.max_pages
            raise KernelError(f"batch: {n} rows of {s} sequences with {width} pages exceed the capacity {room}")
        host = self._arrays.host
        host.counts[0], host.counts[1] = n, s
        host.row_starts[: s + 1] = batch.row_starts
        host.length[:s] = batch.length
        host.slot[:s] = batch.slot
        host.prefill[:s] = batch.prefill
        host.n_accepted[:s] = batch.n_accepted
        host.buffer[:s] = batch.buffer
        host.accepted[:s] = batch.accepted
        taken = None if isinstance(tokens, np.ndarray) else (self.tokens, tokens)
        if taken is None:
            host.tokens[:n] = tokens
        host.sequence[:n] = batch.sequence
        host.parent[:n] = batch.parent
        host.depth[:n] = batch.depth
        np.add(batch.length[batch.sequence], batch.depth, out=host.position[:n])
        host.pages[:s, :width] = batch.pages
        self._n_words = self._before_pages + (s - 1) * self.max_pages + width
        self._arrays.upload(stream, self._n_words, taken=taken)

    def uploaded(self, n_words: int | None = None) -> GpuArray:
        """Return the int32 words of the last upload, or as many words as another batch of this capacity has uploaded."""
        return self._arrays.words[: self._n_words if n_words is None else n_words]

    @property
    def all_but_pages(self) -> GpuArray:
        """All words but the page lists; batches of as many rows and sequences have the same layout up to there."""
        return self._arrays.words[: self._before_pages]

    def clear(self) -> None:
        """Describe a pass without rows; launches that read it do nothing."""
        self.counts.fill(0)


BatchArrays = DeviceBatch | SimpleNamespace
"""A `DeviceBatch`, or arrays of the same names that a kernel writes."""
