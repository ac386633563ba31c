"""An EAGLE-3 head on a GPU."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from dflash.kernels.arrays import GpuArray
from dflash.kernels.gpu import device
from dflash.kernels.gpu.buffers import DeviceArrays
from dflash.kernels.gpu.staging import Staging
from dflash.kernels.linear.cuda import DecodeLinear
from dflash.kernels.norm.cuda import RmsNorm
from dflash.kernels.ragged import PENDING
from dflash.kernels.tree.cuda import Features
from dflash.model.cuda.heads.draft_loop import HeadContext
from dflash.model.cuda.heads.reading import BlockContext, HeadBlock
from dflash.model.cuda.heads.recurrent_head import DeviceRecurrentHead
from dflash.model.cuda.model import DeviceModel
from dflash.model.cuda.ops import Op
from dflash.model.cuda.weights import DeviceWeights
from dflash.model.draft.files.source import Source
from dflash.model.draft.vocabulary import Vocabulary
from dflash.model.eagle.config import EagleConfig
from dflash.model.eagle.network import eagle
from dflash.model.state.sequence_state import State


class EagleFeatures:
    """Makes hidden states of rows from the outputs of the target's layers: ``fc features``, with norms before.

    sources: uint64 (F,); addresses of the outputs of the layers, float32 (T, D) each; all arrays are on the device.
    counts: ``counts[0]`` is the number of rows.
    row: numbers of the rows.
    hidden: float32 (N, D); receives the hidden states.
    """

    def __init__(
        self,
        weights: DeviceWeights[Source],
        config: EagleConfig,
        *,
        sources: GpuArray,
        counts: GpuArray,
        row: GpuArray,
        hidden: GpuArray,
    ) -> None:
        rows, width, n = len(hidden), config.target_width, len(config.target_layer_ids)
        apart = config.feature_norm == "layers"
        self._launches: list[Op] = []
        parts = [sources[i : i + 1] for i in range(n)] if apart else [sources]
        for i, (part, matrix) in enumerate(zip(parts, weights.columns("fc.weight", len(parts)), strict=True)):
            halves = device.empty(rows, len(part) * width, dtype=np.float16)
            if config.feature_norm == "none":
                self._launches.append(Features(part, counts, row, width, halves))
            else:
                raw = device.empty(*halves.shape)
                gain = weights.vector(f"fc_norm.{i}.weight" if apart else "input_norm.weight")
                self._launches += Features(part, counts, row, width, raw), RmsNorm(raw, gain, config.norm_eps, half=halves)
            self._launches.append(DecodeLinear(halves, [matrix], [hidden], add=i > 0))

    def __call__(self, n: int) -> None:
        """Launch for at most `n` rows."""
        for launch in self._launches:
            launch(n)


class DeviceEagleHead(DeviceRecurrentHead):
    """EAGLE-3 head on the GPU of its target; see `EagleHead`.

    The target's features become hidden states when they are observed, so that fewer numbers wait to be read.
    """

    def __init__(
        self,
        model: DeviceModel,
        config: EagleConfig,
        source: Source,
        *,
        known: Vocabulary,
        common: Sequence[Vocabulary] = (),
    ) -> None:
        self.config, self._source, self.target_layer_ids = config, source, config.target_layer_ids
        block = config.block(model.config.context)
        super().__init__(model, block, common)
        with device.device_errors("the EAGLE-3 head"), Staging(model.threads) as staging:
            own = DeviceWeights(source, staging)
            output = "token_embd.weight" if model.config.tied else "output.weight"
            embedding, head = (
                own.matrix(name) if source.has(name) else model.weights.matrix(shared)
                for name, shared in (("token_embd.weight", "token_embd.weight"), ("output.weight", output))
            )
            parts = BlockContext(own, block, embedding, self.pools, model.scratch())
            project, n = partial(EagleFeatures, own, config), len(config.target_layer_ids)
            reading = partial(HeadBlock, parts, eagle(config, block, drafts=True), "token_embd.weight")
            about: dict[str, Any] = {"n_sources": n, "project": project, "normed_output": config.normed_output}
            norm = own.vector("output_norm.weight")
            self.bind(HeadContext(parts, head, norm, known, common, reading, **about))
            self._given = given = DeviceArrays(sources=(2 * n,), counts=(2,), row=(PENDING,))
            self._made, sources = device.empty(PENDING, config.width), given.sources.view(np.uint64)
            self._project = project(sources=sources, counts=given.counts, row=given.row, hidden=self._made)
        self.weights = own

    def features_of(self, out: Any) -> Any:
        """Return the outputs of the target's layers by layer; see `RecurrentHead.features_of`."""
        return out.captured

    def sources_of(self, features: Mapping[int, GpuArray]) -> Sequence[GpuArray] | None:
        """Return the outputs of the layers that the head reads; None if one was not captured."""
        ids = self.target_layer_ids
        return [features[layer] for layer in ids] if all(layer in features for layer in ids) else None

    def extended(
        self, state: State, unread: GpuArray, features: Mapping[int, GpuArray], rows: slice | Sequence[int]
    ) -> GpuArray:
        """Return the unread hidden states of a sequence with those of `rows` appended; valid until the next call."""
        arrays, n = [features[layer] for layer in self.target_layer_ids], len(unread)
        found = np.arange(len(arrays[0]), dtype=np.int32)[rows]
        shelf = self.shelf(state, unread, len(found))
        for start in range(0, len(found), PENDING):
            part, host = found[start : start + PENDING], self._given.host
            host.sources.view(np.uint64)[:] = [array.data.ptr for array in arrays]
            host.counts[0], host.row[: len(part)] = len(part), part
            self._given.upload()
            self._project(len(part))
            device.copy(shelf[n + start : n + start + len(part)], self._made[: len(part)])
        return shelf

    def close(self) -> None:
        """Close the files of the head."""
        self._source.close()
