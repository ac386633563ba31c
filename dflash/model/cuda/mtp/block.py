"""The block of an MTP head on a GPU: launches bound to a batch."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from dflash.kernels.arrays import GpuArray
from dflash.kernels.embed.cuda import Embed
from dflash.kernels.formats.cuda import PackedWeight
from dflash.kernels.gpu import device
from dflash.kernels.linear.cuda import DecodeLinear
from dflash.kernels.norm.cuda import RmsNorm
from dflash.kernels.rope.cuda import Angles
from dflash.model.config import Config
from dflash.model.cuda import layers
from dflash.model.cuda.ops import Ops
from dflash.model.cuda.scratch_arena import ScratchArena
from dflash.model.cuda.weights import DeviceWeights
from dflash.model.cuda.workspace import workspace
from dflash.model.draft.vocabulary import Vocabulary
from dflash.model.rope import inverse_frequencies
from dflash.model.state.pools import Pools


class MtpContext(NamedTuple):
    """Inputs from which an MTP head is built.

    weights: weights of the block.
    config: configuration of one layer.
    pools: keys and values of the block.
    embedding, output: embedding and LM head, usually those of the trunk.
    norm: float32 (D,); gain of the last norm.
    known: draft vocabulary.
    common: smaller draft vocabularies, from fewer to more tokens.
    scratch: memory whose content lasts no longer than a pass.
    """

    weights: DeviceWeights
    config: Config
    pools: Pools
    embedding: PackedWeight
    output: PackedWeight
    norm: Any
    known: Vocabulary
    common: Sequence[Vocabulary]
    scratch: ScratchArena


class Reading:
    """Reads tokens together with the hidden states of the positions before them.

    ``x = eh_proj [rms(embedding(token)); rms(hidden)]``, then a block of full attention.

    batch: arrays named like those of a `DeviceBatch`.
    hidden: float32 (N, D); hidden state of the position before each token.
    stream: float32 (N, D); output of the block, before the last norm.
    """

    def __init__(self, parts: MtpContext, batch: SimpleNamespace, hidden: GpuArray) -> None:
        weights, config, n = parts.weights, parts.config, batch.max_rows
        space = workspace(config, n, parts.pools.kv)
        embedded = device.empty(n, config.width)
        left_half, right_half = (device.empty(n, config.width, dtype=np.float16) for _ in range(2))
        ops, eps = Ops(config, batch, prefill=False, empty=parts.scratch.fork().alloc), config.norm_eps
        inv_freq, gain = inverse_frequencies(config)
        left, right = weights.sides("nextn.eh_proj.weight")
        block = layers.LayerContext(weights, config, space, ops)
        norms = layers.LayerNorms.of(block, first=True)
        mixer = layers.FullAttention(block, (parts.pools.k[0], parts.pools.v[0]), norms)
        self._launches = (
            Embed(batch.tokens, parts.embedding, embedded),
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
