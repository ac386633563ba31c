"""An EAGLE-3 head on a GPU."""

from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from dflash.kernels.arrays import GpuArray
from dflash.kernels.embed.cuda import Embed
from dflash.kernels.gpu import device
from dflash.kernels.gpu.buffers import DeviceArrays
from dflash.kernels.gpu.staging import Staging
from dflash.kernels.linear.cuda import DecodeLinear
from dflash.kernels.norm.cuda import RmsNorm
from dflash.kernels.ragged import PENDING
from dflash.kernels.rope.cuda import Angles
from dflash.kernels.tree.cuda import Features
from dflash.model.cuda import layers
from dflash.model.cuda.heads.draft_loop import BlockContext, HeadContext
from dflash.model.cuda.heads.recurrent_head import DeviceRecurrentHead
from dflash.model.cuda.model import DeviceModel
from dflash.model.cuda.ops import Op, Ops
from dflash.model.cuda.weights import DeviceWeights
from dflash.model.cuda.workspace import workspace
from dflash.model.draft.files.source import Source
from dflash.model.draft.vocabulary import Vocabulary
from dflash.model.eagle.config import EagleConfig
from dflash.model.rope import inverse_frequencies
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


class EagleReading:
    """Reads tokens together with hidden states of the positions before them; see `EagleHead` for the formula.

    config: configuration of the head.
    batch, hidden, stream: see `HeadContext` and `Reading`.
    """

    def __init__(self, context: BlockContext, config: EagleConfig, batch: SimpleNamespace, hidden: GpuArray) -> None:
        weights, block, embedding, pools, scratch = context
        n, eps = batch.max_rows, config.norm_eps
        space = workspace(block, n, pools.kv)
        embedded = device.empty(n, config.width)
        left_half, right_half = (device.empty(n, config.width, dtype=np.float16) for _ in range(2))
        ops = Ops(block, batch, prefill=False, empty=scratch.fork().alloc)
        inv_freq, gain = inverse_frequencies(block)
        names, outs = [f"attn_{part}.weight" for part in "qkv"], [space.query, space.key, space.value]
        left, right = zip(*(weights.columns(name, 2) for name in names), strict=True)
        of_embedding, of_hidden = DecodeLinear(left_half, left, outs), DecodeLinear(right_half, right, outs, add=True)

        def project(n: int) -> None:
            of_embedding(n)
            of_hidden(n)

        parts = layers.LayerContext(weights, block, space, ops)
        norms = layers.LayerNorms(None, ops.norm(space, weights.vector("ffn_norm.weight"), eps, first=False))
        mixer = layers.FullAttention(parts, (pools.k[0], pools.v[0]), norms, project)
        full = {"full": space.stream} if config.normed_residual else {}
        self._launches: list[Op] = [
            Embed(batch.tokens, embedding, embedded),
            RmsNorm(embedded, weights.vector("attn_norm.weight"), eps, half=left_half),
            RmsNorm(hidden, weights.vector("hidden_norm.weight"), eps, half=right_half, **full),
            Angles(batch.position, device.array(inv_freq), space.cos, space.sin, gain=gain),
            layers.Block(parts, mixer, norms),
        ]
        if not config.normed_residual:
            address, every = np.array([hidden.data.ptr], np.uint64), np.arange(n, dtype=np.int32)
            copy = Features(device.array(address), batch.counts, device.array(every), config.width, space.stream)
            self._launches.insert(0, copy)
        self.stream = space.stream

    def __call__(self, n: int) -> None:
        """Launch for `n` rows."""
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
            parts, n = (
                BlockContext(own.block(0), block, embedding, self.pools, model.scratch()),
                len(config.target_layer_ids),
            )
            project, reading = partial(EagleFeatures, own, config), partial(EagleReading, parts, config)
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
