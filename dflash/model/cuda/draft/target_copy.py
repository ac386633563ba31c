"""Copies, on the GPU of a draft model, of the target's data that the draft reads."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dflash.kernels.arrays import GpuArray
from dflash.kernels.gpu import device
from dflash.kernels.gpu.batch import DeviceBatch
from dflash.kernels.gpu.buffers import DeviceArrays
from dflash.kernels.gpu.devices import Devices
from dflash.kernels.gpu.staging import Staging
from dflash.kernels.ragged import PENDING
from dflash.kernels.tree.cuda import WriteDraft, draft_arrays
from dflash.model.batch import Forward
from dflash.model.config import Config
from dflash.model.cuda.model import DeviceModel
from dflash.model.cuda.scratch_arena import ScratchArena
from dflash.model.cuda.weights import DeviceWeights
from dflash.model.draft.context import Rows
from dflash.model.draft.request import DraftRequest
from dflash.model.draft.state import DraftState

TARGET, DRAFT = 0, 1
"""Indices of the two GPUs in `Devices`."""

_CHUNK = 256
"""Rows of features that are copied at a time; a prompt has many. 27 MB for five layers of a 27B."""

Features = Mapping[int, GpuArray]
Items = Sequence[tuple[DraftState, Rows]]


class TargetCopy:
    """Target of a draft on another GPU, with the members that `DeviceBlockDraft` reads.

    No kernel reads memory of the other GPU. Each GPU waits for the other one around a copy, as two launches of one stream
    would, so no array is overwritten while it is read.

    devices: GPU of the target, and GPU of the draft. The second must be current.
    layers: layers whose outputs are the features.
    staging: uploads embedding and LM head of the target's file to the draft's GPU when they are requested.
    latest: the target's last forward with features on the draft's GPU, if `receive` has copied it.
    source: features of the target that those of `latest` are copies of.
    """

    def __init__(self, target: DeviceModel, devices: Devices, layers: Sequence[int], staging: Staging) -> None:
        self.target, self.config, self.n_vocab, self.threads = target, target.config, target.n_vocab, target.threads
        self._devices, self._layers = devices, tuple(layers)
        self.weights = DeviceWeights(target.weights.host, staging)
        self.batch = DeviceBatch(target.batch.max_rows, target.batch.max_sequences, 1)
        self.sampled_ids = device.zeros(len(target.sampled_ids), dtype=np.int32)
        self._step, self._chunk = (self._features(target.config, n) for n in (PENDING, _CHUNK))
        self.latest: Forward | None = None
        self.source: object = None

    def _features(self, config: Config, n_rows: int) -> dict[int, GpuArray]:
        return {layer: device.empty(n_rows, config.width) for layer in self._layers}

    @property
    def alone(self) -> bool:
        """See `DeviceModel`."""
        return self.target.alone

    @property
    def device_requests(self) -> dict[int, DraftRequest[Any]]:
        """See `DeviceModel`."""
        return self.target.device_requests

    def scratch(self) -> ScratchArena:
        """Return an arena of new memory: the draft's GPU has no passes whose memory could be shared."""
        return ScratchArena([])

    def prepare(self, sizes: Sequence[int], capture: tuple[int, ...] = (), *, single: bool = False) -> None:
        """See `DeviceModel.prepare`."""
        with self._devices[TARGET]:
            self.target.prepare(sizes, capture, single=single)

    def receive(self) -> None:
        """Copy batch, sampled tokens and features of the target's last forward if a draft can be launched from them."""
        target, last = self.target, self.target.latest
        self.latest = self.source = None
        if last is None or not target.alone or not all(layer in last.captured for layer in self._layers):
            return
        n = len(last.captured[self._layers[0]])
        if n > PENDING:
            return
        here = {layer: array[:n] for layer, array in self._step.items()}
        pairs = [(last.captured[layer], here[layer]) for layer in self._layers]
        pairs += [(target.batch.all_but_pages, self.batch.all_but_pages), (target.sampled_ids, self.sampled_ids)]
        send(self._devices, TARGET, DRAFT, pairs)
        self.latest, self.source = replace(last, captured=here), last.captured

    def copied(self, items: Items, features: Features) -> Iterator[tuple[Items, Features]]:
        """Copy features, some rows at a time; yield the items with row numbers in the copy, and the copy."""
        n_rows = len(features[self._layers[0]])
        wanted = [(state, np.arange(n_rows)[rows] if isinstance(rows, slice) else np.asarray(rows)) for state, rows in items]
        for start in range(0, n_rows, _CHUNK):
            stop = min(start + _CHUNK, n_rows)
            parts = [(state, rows[(rows >= start) & (rows < stop)] - start) for state, rows in wanted]
            found = [(state, rows) for state, rows in parts if len(rows)]
            if found:
                here = {layer: array[: stop - start] for layer, array in self._chunk.items()}
                send(self._devices, TARGET, DRAFT, [(features[layer][start:stop], here[layer]) for layer in self._layers])
                yield found, here


class SendDraft:
    """Copies draft trees to the GPU of the target, and writes them into a batch there; called as `WriteDraft`."""

    def __init__(self, trees: DeviceArrays, batch: DeviceBatch, devices: Devices) -> None:
        self._trees, self._devices = trees, devices
        with devices[TARGET]:
            self._arrived = draft_arrays(len(trees.anchors))
            self._write = WriteDraft(self._arrived, batch)

    def __call__(self, order: Sequence[int]) -> None:
        """See `WriteDraft`; the launch goes to the target's GPU."""
        send(self._devices, DRAFT, TARGET, [(self._trees.words, self._arrived.words)])
        with self._devices[TARGET]:
            self._write(order)


def send(devices: Devices, source: int, to: int, pairs: Sequence[tuple[GpuArray, GpuArray]]) -> None:
    """Copy arrays (from, to) after all launched work of both GPUs; later work of both sees the copies."""
    devices.wait(source, for_=to)
    devices.send(source, to, pairs)
