"""Attention on a GPU: grids and constants from shapes."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import cupy
import numpy as np

from dflash.errors import KernelError
from dflash.kernels.arrays import GpuArray, Stream, check
from dflash.kernels.attention.cuda_fallback import AttendRows
from dflash.kernels.attention.quantized_tiles import QuantizedTiles, quantized_tiles
from dflash.kernels.exchange.signals import SIGNALS, PeerLink
from dflash.kernels.gpu import device
from dflash.kernels.gpu.batch import BatchArrays
from dflash.kernels.gpu.capabilities import capabilities
from dflash.kernels.gpu.driver import tensor_map
from dflash.kernels.gpu.jit import kernel
from dflash.kernels.gpu.launch import Bound, RowLaunch
from dflash.kernels.kv_types import head_elements, head_size, is_quantized, value_bits
from dflash.kernels.ragged import PAGE, PENDING
from dflash.kernels.rope.cuda import HALVES, check_cache

_HERE = Path(__file__).parent
_SPLITS = 132  # splits times heads of the cache; the multiprocessors of an H100 or H200
_COMPACT = 128  # threads of a block of compact.cu


class Tiles(NamedTuple):
    """Tile sizes of a block: constants of ``tiles.cuh``.

    slots: stages: tiles of keys or values in shared memory.
    hopper: use warpgroup instructions and producer warps that copy.
    """

    keys: int
    queries: int
    slots: int
    hopper: bool

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 2 * self.queries + (0 if not self.hopper else 32 if self.queries == 64 else 128)

    def constants(self) -> dict[str, int]:
        """Return the macros of the kernel."""
        return {"TILE_KV": self.keys, "TILE_Q": self.queries, "STAGES": self.slots}

    def shared(self, width: int) -> int:
        """Return the bytes of shared memory for heads of `width`."""
        return -(-width // 64) * 128 * (self.queries + self.slots * self.keys) + 1024


def tiles(queries: int, group: int, *, hopper: bool) -> Tiles:
    """Return the tiles for at least `queries` queries of a sequence; the bits of a row do not depend on that number."""
    if not hopper:
        return Tiles(32, 64, 4, hopper)
    return Tiles(64, 64, 5, hopper) if queries <= 64 else Tiles(64, 128, 5 if group > 3 else 4, hopper)


def splits(kv: int) -> int:
    """Return the largest number of KV splits of a sequence, so that all multiprocessors of a large GPU take part."""
    return max(1, min(66, _SPLITS // kv))


class Workspace:
    """Partial results of KV splits, shared by all launches of a stream; 52 MB for 24 heads of 256.

    empty: allocates a float32 array of a given size. A launch reads only values that the launch itself has written.
    """

    def __init__(self, empty: Callable[[int], Any] = device.empty) -> None:
        self._empty = empty
        self.partial, self.stats = empty(0), empty(0)

    def reserve(self, queries: int, parts: int, width: int) -> None:
        """Grow the arrays to the given size; launches bound before keep the old arrays."""
        if self.partial.size < queries * parts * width:
            self.partial = self._empty(queries * parts * width)
        if self.stats.size < 2 * queries * parts:
            self.stats = self._empty(2 * queries * parts)


class _Attention:
    """Checks and arguments that `Attend` and `Prefill` share."""

    def __init__(
        self, name: str, q: GpuArray, k: GpuArray, v: GpuArray, batch: BatchArrays, out: GpuArray, gate: GpuArray
    ) -> None:
        check_cache(name, k, v, q)
        self.rows, self.heads, self.width = q.shape
        self.kv = k.shape[2]
        self.group = self.heads // self.kv
        if self.group > 64:
            raise KernelError(f"{name}: {self.heads} query heads for {self.kv} KV heads; at most 64 may share one")
        check(f"{name}: out", out, (self.rows, self.heads * self.width), HALVES)
        if gate is not None:
            check(f"{name}: gate", gate, (self.rows, self.heads * 2 * self.width))
        self.exact = k.dtype == cupy.float32
        self.batch, self.arrays = batch, (q, k, v)
        self.constants = {"HEAD_DIM": self.width, "GROUP_SIZE": self.group, "KV_HEADS": self.kv}
        self.constants["GATED"] = int(gate is not None)
        hopper = capabilities().has_wgmma
        self.hopper, self.suffix = hopper, "_hopper" if hopper else ""
        self.quantized = is_quantized(k)
        self.bits = value_bits(k), value_bits(v)
        if hopper and not (self.exact or self.quantized):
            places = k.shape[0] * PAGE, self.kv * self.width
            self.inputs = q, *(tensor_map(cache.reshape(places), (64, 64)) for cache in (k, v))
        else:
            self.inputs = self.arrays
        if self.exact:
            self._exact = AttendRows(q, k, v, batch, out, gate=gate)

    def __call__(self, n_rows: int, stream: Stream = None) -> None:
        """Run for the first `n_rows` rows; rows beyond the batch's count are not written."""
        if self.exact:
            self._exact(n_rows, stream)
        else:
            self._launch(n_rows, stream)

    def _launch(self, n_rows: int, stream: Stream) -> None:
        raise NotImplementedError


class Attend(_Attention):
    """`dflash.kernels.attention.attend` of up to 64 pending rows, on fixed arrays.

    q: float16 (T, H, D), or float32 for a float32 cache; queries from `Rotate`.
    k, v: float16 or float32 (pages, PAGE, KV, D), int8 (pages, PAGE, KV, D + 16), or uint8 (pages, PAGE, KV, D / 2 + 16);
        cache of one layer; int8 is q8_0, uint8 q4_0. Quantized keys and values may have different types. The keys and values
        of the rows are in it already; with q4_0 keys, queries and keys are mixed (`dflash.kernels.kv_types`).
    gate: float32 (T, H * 2 * D), optional; query projection whose heads hold D gates after the D query values.
    workspace: workspace of the stream, not used for float32 caches. Float16 arrays may be given as uint16.
    whole_heads: KV heads of the model if this cache has only some of them; they determine the splits, and so the bits.
    link: link to the other GPUs of a tensor split, which receive the results; for float16 caches only.
    Raises KernelError if a shape or a type does not fit, or an array is strided; the message names the array.

    Products are of float16, sums and softmax are float32; weights are rounded to float16. With a float32 cache everything
    is float32. The bits of a row depend only on its visible tokens and on its index in the cache (``length`` plus its row
    number), so a chain equals single steps bit for bit. Two launches, memory-bound: ``4 * length * KV * D`` bytes, of a
    quantized cache ``length * KV`` times the bytes of a head of keys and one of values.

    Dao, Haziza, Massa, Sizov 2023, Flash-Decoding.
    """

    def __init__(
        self,
        q: GpuArray,
        k: GpuArray,
        v: GpuArray,
        batch: BatchArrays,
        out: GpuArray,
        *,
        gate: GpuArray = None,
        workspace: Workspace | None = None,
        whole_heads: int | None = None,
        link: PeerLink | None = None,
    ) -> None:
        super().__init__("attend", q, k, v, batch, out, gate)
        if self.exact:
            return
        parts, space, most = splits(whole_heads or self.kv), workspace or Workspace(), min(self.rows, PENDING)
        self.max_splits = parts
        space.reserve(most * self.heads, parts, self.width)
        rows = batch.counts, batch.row_starts, batch.parent, batch.depth, batch.length, batch.pages
        room = batch.max_pages, batch.max_rows, batch.max_sequences
        self.partial = space.partial, space.stats
        given = *rows, *room, *self.partial
        chosen = partial(quantized_tiles, bits=self.bits) if self.quantized else tiles
        self._tiles = partial(chosen, group=self.group, hopper=self.hopper)
        self._attend: dict[Any, Bound] = {}
        for cut in dict.fromkeys(self._tiles(n * self.group) for n in range(1, most + 1)):
            name, inputs = f"decode{self.suffix}", self.inputs
            if isinstance(cut, QuantizedTiles):
                name, inputs = cut.kernel, (q, cut.argument(k), cut.argument(v))
            constants = {**self.constants, **cut.constants(), "MAX_SPLITS": parts, "GATED": 0}
            made = kernel(_HERE / f"{name}.cu", name, dependent=True, **constants)
            n_processors = capabilities().processors
            self._attend[cut] = made.bind(n_processors, cut.threads, (*inputs, *given), cut.shared(self.width))
        linked = {} if link is None else link.macros
        constants = {**self.constants, **linked, "MAX_SPLITS": parts}
        made = kernel(_HERE / "combine.cu", "combine", dependent=True, **constants).with_max_carveout()
        self._across = -(-self.group * self.width // 256), self.kv
        args = batch.counts, batch.row_starts, batch.sequence, batch.length, gate, space.partial, space.stats, out
        args = *args, *((None, 0) if link is None else (link.table(), SIGNALS))
        self._combine = made.bind((*self._across, 1), 256, args)
        self.linked = link is not None

    def combine(self, n_rows: int, stream: Stream = None) -> None:
        """Combine the partial results of all splits of the first `n_rows` rows."""
        self._combine(stream, grid=(*self._across, n_rows))

    def _launch(self, n_rows: int, stream: Stream) -> None:
        if n_rows > PENDING:
            raise KernelError(f"attend: at most {PENDING} pending rows, got {n_rows}")
        self._attend[self._tiles(n_rows * self.group)](stream)
        self.combine(n_rows, stream)


class Prefill(_Attention):
    """`dflash.kernels.attention.attend` for prefill: chains of any length; parameters as for `Attend`.

    A quantized cache must be unpacked first; see `Unpack`.

    One launch, compute-bound: ``4 * D * H`` operations for each row and visible position. The bits of a row depend only on
    its visible tokens, not on the chunks of the prompt; they differ from those of `Attend`.
    """

    def __init__(
        self, q: GpuArray, k: GpuArray, v: GpuArray, batch: BatchArrays, out: GpuArray, *, gate: GpuArray = None
    ) -> None:
        super().__init__("prefill", q, k, v, batch, out, gate)
        if self.exact:
            return
        if self.quantized:
            raise KernelError("prefill: a quantized cache must be unpacked first")
        name = f"prefill{self.suffix}"
        self._prefill: dict[Any, Bound] = {}
        rows = batch.counts, batch.row_starts, batch.length, batch.pages, batch.max_pages
        args = (*self.inputs, *rows, gate, out)
        for cut in {tiles(n, self.group, hopper=self.hopper) for n in (64, 128)}:
            made = kernel(_HERE / f"{name}.cu", name, dependent=True, **self.constants, **cut.constants())
            self._prefill[cut] = made.bind(self.kv, cut.threads, args, cut.shared(self.width))
        self._few = 128 * capabilities().processors // (self.group * self.kv)

    def _launch(self, n_rows: int, stream: Stream) -> None:
        # few rows take small tiles, to occupy more multiprocessors
        cut = tiles(64 if n_rows < self._few else 128, self.group, hopper=self.hopper)
        most = -(-n_rows * self.group // cut.queries) + min(n_rows, self.batch.max_sequences)
        self._prefill[cut](stream, grid=(most * self.kv,))


class Unpack:
    """Unpacks what a pass reads of a quantized cache to float16, at the same places.

    k, v: int8 (pages, PAGE, KV, D + 16) or uint8 (pages, PAGE, KV, D / 2 + 16); cache of one layer.
    batch: description of the rows, whose keys and values are in the cache already.
    out_k, out_v: float16 or uint16 (pages, PAGE, KV, D); receive the values of all positions of the sequences of the batch.

    One launch, memory-bound: ``6 * length * KV * D`` bytes, of q4_0 5 in place of 6. Far less than the attention of a prompt
    chunk takes.
    """

    def __init__(self, k: GpuArray, v: GpuArray, batch: BatchArrays, out_k: GpuArray, out_v: GpuArray) -> None:
        shape = *k.shape[:3], head_size(k)
        for name, cache in (("k", k), ("v", v)):
            check(f"unpack: {name}", cache, (*k.shape[:3], head_elements(cache, shape[3])), (cupy.int8, cupy.uint8))
        check("unpack: out_k", out_k, shape, HALVES)
        check("unpack: out_v", out_v, shape, HALVES)
        constants = {"HEAD_DIM": shape[3], "KV_HEADS": shape[2], "KEY_BITS": value_bits(k), "VALUE_BITS": value_bits(v)}
        made = kernel(_HERE / "unpack.cu", "unpack", dependent=True, **constants)
        rows = batch.counts, batch.row_starts, batch.length, batch.pages, batch.max_pages
        args = (*(cache.view(cupy.uint8) for cache in (k, v)), *rows, out_k, out_v)
        self._launch = made.bind((2 * capabilities().processors, 2), 256, args)

    def __call__(self, stream: Stream = None) -> None:
        """Launch."""
        self._launch(stream)


class Compact(RowLaunch):
    """Moves the keys and values of accepted paths of several sequences to their final positions, in all layers.

    k, v: float16 or float32 (pages, PAGE, KV, D) or (layers, pages, PAGE, KV, D); caches, changed in place; or int8, which
        moves as it is.
    pages: int32 (S, P); pages of the sequences.
    length: int32 (S,); committed tokens before the paths.
    accepted: int32 (S, PENDING); accepted rows, root first; row i is stored at ``length + i``.

    One launch, for the first sequences. A chain moves nothing.
    """

    def __init__(
        self, k: GpuArray, v: GpuArray, pages: GpuArray, length: GpuArray, accepted: GpuArray, n_accepted: GpuArray
    ) -> None:
        layers = k.shape[0] if k.ndim == 5 else 1
        lines = [cache.shape[-2] * cache.shape[-1] * cache.itemsize // 16 for cache in (k, v)]
        across = -(-max(lines) // _COMPACT), 2 * layers
        places = k.shape[-4] * k.shape[-3]
        args = k.view(cupy.uint8), v.view(cupy.uint8), *lines, places, pages, pages.shape[-1], length, accepted, n_accepted
        super().__init__(kernel(_HERE / "compact.cu", "compact").bind((*across, 1), _COMPACT, args), *across)


def compact(k: GpuArray, v: GpuArray, *, pages: GpuArray, length: int, path: Sequence[int], stream: Stream = None) -> None:
    """Run `dflash.kernels.attention.compact` on device caches; the other arguments may be on the host."""
    kept = np.zeros((1, PENDING), np.int32)
    kept[0, : len(path)] = path
    with stream or cupy.cuda.get_current_stream():
        small = [cupy.asarray(a, cupy.int32) for a in (np.asarray([length]), kept, np.asarray([len(path)]))]
        Compact(k, v, cupy.asarray(pages, cupy.int32).reshape(1, -1), *small)(1, stream)
