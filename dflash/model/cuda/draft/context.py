"""Context of a draft model on a GPU: features of the target become keys and values of every layer."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.gpu import device
from dflash.kernels.gpu.buffers import DeviceArrays
from dflash.kernels.linear.cuda import BUCKETS, DecodeLinear
from dflash.kernels.norm.cuda import RmsNorm
from dflash.kernels.ragged import PENDING
from dflash.kernels.rope.cuda import Angles, Append
from dflash.kernels.tree.cuda import SEQUENCES, Features, context_shapes
from dflash.model.cuda.draft.rings import DeviceRings, rows_of
from dflash.model.cuda.graphs import Graphs
from dflash.model.cuda.weights import DeviceWeights
from dflash.model.draft.config import DraftConfig
from dflash.model.draft.context import Rows
from dflash.model.draft.state import DraftState
from dflash.model.rope import inverse_frequencies

Piece = tuple[DraftState, NDArray[np.int32]]
"""State of a sequence, and the rows of the features to read next."""


class Context:
    """Appends positions to the rings, at most 64 at a time.

    ``c = norm(fc [features])``; for every layer ``k = rope(norm(Wk c))`` at the position, ``v = Wv c``.

    arrays: inputs of a pass: arrays of `context_shapes`, ``pages`` (S, P) of the rings, and ``sources``, addresses of
        features.
    """

    def __init__(self, weights: DeviceWeights, config: DraftConfig, rings: DeviceRings) -> None:
        n, width, row = PENDING, config.width, config.kv_heads * config.head_size
        self._taps, self._rings = config.target_layer_ids, rings
        room = {"pages": (SEQUENCES, rings.laps), "sources": (2 * len(config.target_layer_ids),)}
        self.arrays = a = DeviceArrays(**context_shapes(), **room)
        features = device.empty(n, len(config.target_layer_ids) * width, dtype=np.float16)
        fused, normed = device.empty(n, width), device.empty(n, width, dtype=np.float16)
        sources = a.sources.view(np.uint64)
        self._features = Features(sources, a.counts, a.row, width, features)
        self._fuse = DecodeLinear(features, [weights.matrix("fc.weight")], [fused])
        self._norm = RmsNorm(fused, weights.vector("enc.output_norm.weight"), config.norm_eps, half=normed)
        inv_freq, gain = inverse_frequencies(config)
        cos, sin = (device.empty(n, config.n_rot // 2) for _ in range(2))
        self._angles = Angles(a.position, device.array(inv_freq), cos, sin, gain=gain)
        layers = range(config.n_layers)
        stacks = weights.stacks([f"blk.{i}.attn_{part}.weight" for i in layers for part in "kv"])
        outs = [device.empty(n, stack.shape[0]) for stack, _ in stacks]
        self._project = DecodeLinear(normed, [stack for stack, _ in stacks], outs)
        made: dict[str, Any] = {}
        for out, (_, names) in zip(outs, stacks, strict=True):
            made |= {name: out[:, i * row : (i + 1) * row] for i, name in enumerate(names)}
        keys, values = ([made[f"blk.{i}.attn_{part}.weight"] for i in layers] for part in "kv")
        gains = device.array(np.stack([weights.host.vector(f"blk.{i}.attn_k_norm.weight") for i in layers]))
        batch, caches = rows_of(a, pages=a.pages, length=a.length), rings.pages()
        self._append = Append(keys, values, gains, cos, sin, batch, eps=config.norm_eps, **caches)
        self._graphs = Graphs(self._launch, self._clear)
        self._laid: tuple[list[int], list[int]] | None = None

    def read(self, items: Sequence[tuple[DraftState, Rows]], features: Mapping[int, Any]) -> None:
        """Read rows of several sequences; see `BlockDraft.read_many`."""
        n_rows = len(features[self._taps[0]])
        batch: list[Piece] = []
        room = PENDING
        for state, rows in items:
            wanted = np.arange(n_rows, dtype=np.int32)[rows] if isinstance(rows, slice) else np.asarray(rows, np.int32)
            # rows that later rows of the same call would overwrite in the ring are skipped
            skipped = max(len(wanted) - self._rings.reach, 0)
            state.length, wanted = state.length + skipped, wanted[skipped:]
            while len(wanted):
                batch.append((state, wanted[:room]))
                wanted, room = wanted[room:], room - len(batch[-1][1])
                if room == 0 or len(batch) == SEQUENCES:
                    self._read(batch, features)
                    batch, room = [], PENDING
        if batch:
            self._read(batch, features)

    def lay(self, states: Sequence[DraftState], features: Mapping[int, Any]) -> None:
        """Upload the slots of the sequences and the addresses of the features; a kernel selects the rows.

        An upload equal to the last one is skipped.
        """
        slots, sources = [state.slot for state in states], [features[tap].data.ptr for tap in self._taps]
        if self._laid != (slots, sources):
            self._send(slots, sources)
            self._laid = slots, sources

    def _send(self, slots: Sequence[int], sources: Sequence[int]) -> None:
        host = self.arrays.host
        for i, slot in enumerate(slots):
            host.pages[i] = self._rings.pages_of(slot)
        host.sources.view(np.uint64)[:] = sources
        self.arrays.upload()
        self._laid = None

    def prepare(self, n: int) -> int:
        """Capture a graph that reads up to `n` rows; return its key for `run`."""
        size = next(bucket for bucket in BUCKETS if bucket >= n)
        self._graphs.prepare(size)
        return size

    def run(self, size: int) -> None:
        """Run the graph of a size on the uploaded arrays."""
        self._graphs(size)

    def _read(self, batch: Sequence[Piece], features: Mapping[int, Any]) -> None:
        n = sum(len(rows) for _, rows in batch)
        size = self.prepare(n)
        host, at = self.arrays.host, 0
        host.counts[:] = n, len(batch)
        for i, (state, rows) in enumerate(batch):
            part = slice(at, at + len(rows))
            host.row_starts[i], host.row_starts[i + 1] = part.start, part.stop
            host.sequence[part], host.row[part] = i, rows
            host.position[part] = np.arange(state.length, state.length + len(rows))
            host.length[i] = state.length % self._rings.size
            state.length, at = state.length + len(rows), part.stop
        self._send([state.slot for state, _ in batch], [features[tap].data.ptr for tap in self._taps])
        self.run(size)

    def _launch(self, n: int) -> None:
        self._features(n)
        self._fuse(n)
        self._norm(n)
        self._project(n)
        self._angles(n)
        self._append(n)

    def _clear(self) -> None:
        self.arrays.counts.fill(0)
