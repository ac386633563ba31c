"""Context of a draft model: features of the target become keys and values of every layer."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash.kernels import block_attention
from dflash.kernels.profile import timed
from dflash.model.draft.config import DraftConfig
from dflash.model.draft.files.source import Source
from dflash.model.draft.state import DraftState, Rings
from dflash.model.network.draft import context
from dflash.model.run.cpu import Batch, Host
from dflash.model.run.joined import HostPass
from dflash.model.run.memory import NO_MEMORY

CHUNK = 256
"""Rows that are read at a time, which bounds the workspace."""

append = timed("append")(block_attention.append)

Rows = slice | Sequence[int] | NDArray[np.integer]
Features = Mapping[int, Any]


class Context:
    """Appends positions to the rings: keys and values that `dflash.model.network.draft.context` makes of features."""

    def __init__(self, source: Source, config: DraftConfig, rings: Rings) -> None:
        self._config, self._rings, n_rows = config, rings, min(CHUNK, rings.size)
        network = context(config)
        host = Host(network.program, source, NO_MEMORY, n_rows, eps=config.norm_eps)
        self._run, self._features = HostPass(network.program, host), host[network.features]
        shape = n_rows, config.kv_heads, config.head_size
        self._made = [tuple(host[each].reshape(shape) for each in pair) for pair in network.made]
        self._slots, self._positions = np.empty((2, n_rows), np.int32)

    def read(self, items: Sequence[tuple[DraftState, Rows]], features: Features) -> None:
        """Read rows of several sequences; see `BlockDraft.read_many`."""
        room, at = len(self._slots), 0
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
        for i, tap in enumerate(self._config.target_layer_ids):
            part = features[tap][index]
            self._features[at : at + n, i * width : (i + 1) * width] = part.get() if hasattr(part, "get") else part
        self._slots[at : at + n] = state.slot
        self._positions[at : at + n] = np.arange(state.length, state.length + n)
        state.length += n

    def _append(self, n: int) -> None:
        slots, positions = self._slots[:n], self._positions[:n]
        self._run(Batch(slots, positions), n)
        for i, (k, v) in enumerate(self._made):
            append(k[:n], v[:n], self._rings.k[i], self._rings.v[i], slots=slots, positions=positions)
