"""Context of a draft model: features of the target become keys and values of every layer."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash.kernels import block_attention
from dflash.kernels.linear import PackedLinear
from dflash.kernels.profile import timed
from dflash.model.draft.config import DraftConfig
from dflash.model.draft.files.source import DraftLayerWeights, Source
from dflash.model.draft.layers import rms_norm, turn
from dflash.model.draft.state import DraftState, Rings
from dflash.model.draft.workspace import context_space
from dflash.model.rope import inverse_frequencies, tabulate

CHUNK = 256
"""Rows that are read at a time, which bounds the workspace."""

append = timed("append")(block_attention.append)

Rows = slice | Sequence[int] | NDArray[np.integer]
Features = Mapping[int, Any]


class Context:
    """Appends positions to the rings.

    ``c = norm(fc [features])``; for every layer ``k = rope(norm(Wk c))`` at the position, ``v = Wv c``.
    """

    def __init__(self, source: Source, config: DraftConfig, rings: Rings) -> None:
        self._config, self._rings = config, rings
        self._space = space = context_space(config, min(CHUNK, rings.size))
        a, blocks = space.all, [DraftLayerWeights(source, i) for i in range(config.n_layers)]
        self._fuse = PackedLinear(a.features, [source.matrix("fc.weight")], [a.fused], name="fc")
        self._norm = source.vector("enc.output_norm.weight")
        matrices = [block.matrix(name) for block in blocks for name in ("attn_k.weight", "attn_v.weight")]
        outs = [getattr(a, f"{part}{i}") for i in range(config.n_layers) for part in ("key", "value")]
        self._project = PackedLinear(a.fused, matrices, outs, name="context projections")
        self._k_norms = [block.vector("attn_k_norm.weight") for block in blocks]
        self._inv_freq, self._gain = inverse_frequencies(config)
        self._slots, self._positions = np.empty((2, space.n_rows), np.int32)

    def read(self, items: Sequence[tuple[DraftState, Rows]], features: Features) -> None:
        """Read rows of several sequences; see `BlockDraft.read_many`."""
        room, at = self._space.n_rows, 0
        for state, rows in items:
            part = self._wanted(state, rows, features)
            while len(part):
                n = min(len(part), room - at)
                self._gather(state, part[:n], features, at)
                part, at = part[n:], at + n
                if at == room:
                    self._append(at)
                    at = 0
        if at:
            self._append(at)

    def _wanted(self, state: DraftState, rows: Rows, features: Features) -> range | NDArray[np.intp]:
        """Return the rows to read, without rows that later ones of the same call would overwrite in the ring."""
        n_rows = len(features[self._config.target_layer_ids[0]])
        wanted = range(n_rows)[rows] if isinstance(rows, slice) else np.asarray(rows, np.intp)
        skipped = max(len(wanted) - state.rings.size, 0)
        state.length += skipped
        return wanted[skipped:]

    def _gather(self, state: DraftState, rows: range | NDArray[np.intp], features: Features, at: int) -> None:
        """Copy features of all target layers side by side, and count the rows as read by the state."""
        n, width = len(rows), self._config.width
        index = slice(rows.start, rows.stop, rows.step) if isinstance(rows, range) else rows
        target = self._space.all.features
        for i, tap in enumerate(self._config.target_layer_ids):
            part = features[tap][index]
            target[at : at + n, i * width : (i + 1) * width] = part.get() if hasattr(part, "get") else part
        self._slots[at : at + n] = state.slot
        self._positions[at : at + n] = np.arange(state.length, state.length + n)
        state.length += n

    def _append(self, n: int) -> None:
        s, config = self._space.first(n), self._config
        slots, positions = self._slots[:n], self._positions[:n]
        self._fuse(n)
        rms_norm(s.fused, self._norm, config.norm_eps, out=s.fused)
        self._project(n)
        tabulate(positions, self._inv_freq, self._gain, s)
        for i, k_norm in enumerate(self._k_norms):
            k, v = (getattr(s, f"{part}{i}").reshape(n, config.kv_heads, config.head_size) for part in ("key", "value"))
            turn(k, k_norm, s.cos, s.sin, eps=config.norm_eps)
            append(k, v, self._rings.k[i], self._rings.v[i], slots=slots, positions=positions)
