"""An EAGLE-3 head on a GPU."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.arrays import GpuArray
from dflash.kernels.gpu import device
from dflash.kernels.gpu.buffers import DeviceArrays
from dflash.kernels.gpu.staging import Staging
from dflash.kernels.linear.cuda import DecodeLinear
from dflash.kernels.linear.cuda_prefill import PrefillLinear, UnpackScratch
from dflash.kernels.norm.cuda import RmsNorm
from dflash.kernels.ragged import PENDING
from dflash.kernels.tree.cuda import Features
from dflash.model.cuda.heads.append_pass import ROWS
from dflash.model.cuda.heads.draft_loop import HeadContext
from dflash.model.cuda.heads.feature_rows import FeatureRows
from dflash.model.cuda.heads.reading import BlockContext, HeadBlock
from dflash.model.cuda.heads.recurrent_head import DeviceRecurrentHead
from dflash.model.cuda.model import DeviceModel
from dflash.model.cuda.ops import Op, spare_bytes
from dflash.model.cuda.weights import DeviceWeights
from dflash.model.draft.files.source import Source
from dflash.model.draft.vocabulary import Vocabulary
from dflash.model.eagle.config import EagleConfig
from dflash.model.eagle.network import eagle
from dflash.model.recurrent_head import Rows


class EagleFeatures:
    """Makes hidden states of rows from the outputs of the target's layers: ``fc features``, with norms before.

    sources: uint64 (F,); addresses of the outputs of the layers, float32 (T, D) each; all arrays are on the device.
    counts: ``counts[0]`` is the number of rows.
    row: numbers of the rows.
    hidden: float32 (N, D); receives the hidden states.
    multiply, empty: make the multiplies, and the arrays between the launches.
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
        multiply: Callable[..., Op] = DecodeLinear,
        empty: Callable[..., GpuArray] = device.empty,
    ) -> None:
        rows, width, n = len(hidden), config.target_width, len(config.target_layer_ids)
        apart = config.feature_norm == "layers"
        self._launches: list[Op] = []
        parts = [sources[i : i + 1] for i in range(n)] if apart else [sources]
        for i, (part, matrix) in enumerate(zip(parts, weights.columns("fc.weight", len(parts)), strict=True)):
            halves = empty(rows, len(part) * width, dtype=np.float16)
            if config.feature_norm == "none":
                self._launches.append(Features(part, counts, row, width, halves))
            else:
                raw = empty(*halves.shape)
                gain = weights.vector(f"fc_norm.{i}.weight" if apart else "input_norm.weight")
                self._launches += Features(part, counts, row, width, raw), RmsNorm(raw, gain, config.norm_eps, half=halves)
            self._launches.append(multiply(halves, [matrix], [hidden], add=i > 0))

    def __call__(self, n: int) -> None:
        """Launch for at most `n` rows."""
        for launch in self._launches:
            launch(n)


_SPARE = 256
"""Rows of scratch memory beyond those of the weights, which are laid out at multiples of 32."""


class Projection:
    """Makes hidden states of any rows, a number of them at a time.

    project: see `HeadContext`.
    n_sources: number of arrays that hold the features.
    made: float32 (N, D); memory of N rows.
    """

    def __init__(self, project: Callable[..., Op], n_sources: int, made: GpuArray) -> None:
        self._given, self._made = DeviceArrays(16, sources=(2 * n_sources,), counts=(2,), row=(len(made),)), made
        given = self._given
        self._project = project(sources=given.sources.view(np.uint64), counts=given.counts, row=given.row, hidden=made)

    def __call__(self, arrays: Sequence[GpuArray], rows: NDArray[np.int32]) -> GpuArray:
        """Return hidden states (N, D) of rows of the arrays, in memory of their own."""
        out, most = device.empty(len(rows), self._made.shape[1]), len(self._made)
        for start in range(0, len(rows), most):
            part, host = rows[start : start + most], self._given.host
            host.sources.view(np.uint64)[:] = [array.data.ptr for array in arrays]
            host.counts[0], host.row[: len(part)] = len(part), part
            self._given.upload()
            self._project(len(part))
            device.copy(out[start : start + len(part)], self._made[: len(part)])
        return out


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
            append = eagle(config, block, drafts=False)
            self.bind(HeadContext(parts, head, norm, known, common, reading, **about), append, "token_embd.weight")
            self._decoded = Projection(project, n, device.empty(PENDING, config.width))
            arena = model.scratch()
            n_bytes = 2 * n * config.target_width * (config.width + _SPARE)
            scratch = UnpackScratch(n_bytes, arena.alloc, kept=spare_bytes())
            of_prompts = {"multiply": partial(PrefillLinear, scratch=scratch), "empty": arena.alloc}
            self._prompts = Projection(partial(project, **of_prompts), n, arena.alloc(ROWS, config.width))
        self.weights = own

    def sources_of(self, features: Mapping[int, GpuArray]) -> Sequence[GpuArray] | None:
        """Return the outputs of the layers that the head reads; None if one was not captured."""
        ids = self.target_layer_ids
        return [features[layer] for layer in ids] if all(layer in features for layer in ids) else None

    def features_at(self, features: Mapping[int, GpuArray], rows: Sequence[Rows], *, prompt: bool) -> list[FeatureRows]:
        """See `RecurrentHead.features_at`."""
        arrays = [features[layer] for layer in self.target_layer_ids]
        numbers = np.arange(len(arrays[0]), dtype=np.int32)
        found = [numbers[each] for each in rows]
        made = (self._prompts if prompt else self._decoded)(arrays, np.concatenate(found))
        ends = accumulate(map(len, found), initial=0)
        return FeatureRows.parts_of(made, [slice(*each) for each in pairwise(ends)])

    def close(self) -> None:
        """Close the files of the head."""
        self._source.close()
