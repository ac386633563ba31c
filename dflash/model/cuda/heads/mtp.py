"""The MTP head of a model on a GPU."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from dflash.kernels.arrays import GpuArray
from dflash.kernels.embed.cuda import Embed
from dflash.kernels.gpu import device
from dflash.kernels.gpu.staging import Staging
from dflash.kernels.linear.cuda import DecodeLinear
from dflash.kernels.norm.cuda import RmsNorm
from dflash.kernels.rope.cuda import Angles
from dflash.model.config import Config
from dflash.model.cuda import layers
from dflash.model.cuda.heads.draft_loop import BlockContext, HeadContext
from dflash.model.cuda.heads.recurrent_head import DeviceRecurrentHead
from dflash.model.cuda.model import DeviceModel
from dflash.model.cuda.ops import Ops
from dflash.model.cuda.weights import DeviceWeights
from dflash.model.cuda.workspace import workspace
from dflash.model.draft.vocabulary import Vocabulary
from dflash.model.gguf.file import GGUFFile
from dflash.model.rope import inverse_frequencies
from dflash.model.weights import TargetTensors


class MtpReading:
    """Reads tokens together with the hidden states of the positions before them.

    ``x = eh_proj [rms(embedding(token)); rms(hidden)]``, then a block of full attention.

    batch, hidden, stream: see `HeadContext` and `Reading`.
    """

    def __init__(self, parts: BlockContext, batch: SimpleNamespace, hidden: GpuArray) -> None:
        weights, config, embedding, pools, scratch = parts
        n = batch.max_rows
        space = workspace(config, n, pools.kv)
        embedded = device.empty(n, config.width)
        left_half, right_half = (device.empty(n, config.width, dtype=np.float16) for _ in range(2))
        ops, eps = Ops(config, batch, prefill=False, empty=scratch.fork().alloc), config.norm_eps
        inv_freq, gain = inverse_frequencies(config)
        left, right = weights.columns("nextn.eh_proj.weight", 2)
        block = layers.LayerContext(weights, config, space, ops)
        norms = layers.LayerNorms.of(block, first=True)
        mixer = layers.FullAttention(block, (pools.k[0], pools.v[0]), norms)
        self._launches = (
            Embed(batch.tokens, embedding, embedded),
            RmsNorm(embedded, weights.vector("nextn.enorm.weight"), eps, half=left_half),
            RmsNorm(hidden, weights.vector("nextn.hnorm.weight"), eps, half=right_half),
            DecodeLinear(left_half, [left], [space.stream]),
            DecodeLinear(right_half, [right], [space.stream], add=True),
            Angles(batch.position, device.array(inv_freq), space.cos, space.sin, gain=gain),
            layers.Block(block, mixer, norms),
        )
        self.stream = space.stream

    def __call__(self, n: int) -> None:
        """Launch for `n` rows."""
        for launch in self._launches:
            launch(n)


class DeviceMtpHead(DeviceRecurrentHead):
    """MTP head on the GPU of its trunk: reads the trunk's tokens, shifted by one, then drafts from its own states.

    model: the trunk.
    weights: weights of the block.
    config: configuration of the file that holds the block.
    file: the file that holds the block, if it is not the trunk's; closed with the head.
    known: draft vocabulary.
    common: smaller draft vocabularies, from fewer to more tokens.
    """

    def __init__(
        self,
        model: DeviceModel,
        weights: DeviceWeights[Any] | TargetTensors,
        config: Config,
        file: GGUFFile | None = None,
        *,
        known: Vocabulary,
        common: Sequence[Vocabulary] = (),
    ) -> None:
        self.config = config = replace(config, n_layers=1, recurrent=(False,))
        self._file = file
        super().__init__(model, config, common)
        host = weights.host if isinstance(weights, DeviceWeights) else weights
        with device.device_errors("the MTP head"), Staging(model.threads) as staging:
            own, theirs = DeviceWeights(host, staging), model.weights
            output = "token_embd.weight" if model.config.tied else "output.weight"
            embedding, head = (
                own.matrix(name) if name in host else theirs.matrix(shared)
                for name, shared in (
                    ("nextn.embed_tokens.weight", "token_embd.weight"),
                    ("nextn.shared_head_head.weight", output),
                )
            )
            norm = "nextn.shared_head_norm.weight"
            last = own.vector(norm) if norm in host else theirs.vector("output_norm.weight")
            block = BlockContext(own, config, embedding, self.pools, model.scratch())
            self.bind(HeadContext(block, head, last, known, common, partial(MtpReading, block)))
        self.weights = own

    def close(self) -> None:
        """Close the file if the head has its own."""
        if self._file is not None:
            self._file.close()
