"""The block of a head on a GPU: launches bound to a batch."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from dflash.kernels.arrays import GpuArray
from dflash.kernels.formats.cuda import PackedWeight
from dflash.kernels.gpu import device
from dflash.kernels.tree.cuda import Features
from dflash.model.config import Config
from dflash.model.cuda.ops import Ops
from dflash.model.cuda.scratch_arena import ScratchArena
from dflash.model.cuda.weights import DeviceWeights
from dflash.model.cuda.workspace import workspace
from dflash.model.network.heads import HeadNetwork
from dflash.model.run.cuda import Device, Launches, steps_of
from dflash.model.run.memory import Memory
from dflash.model.state.pools import Pools


class BlockContext(NamedTuple):
    """Parts of a head from which the launches of its block are made."""

    weights: DeviceWeights[Any]
    config: Config
    embedding: PackedWeight
    pools: Pools
    scratch: ScratchArena


class HeadBlock:
    """Launches that read tokens together with the hidden states of the positions before them: a head without its last norm.

    hidden: float32 (N, D); hidden states that are given.
    stream: float32 (N, D); output of the block, before the last norm.
    """

    def __init__(
        self, context: BlockContext, network: HeadNetwork, table: str, batch: SimpleNamespace, hidden: GpuArray
    ) -> None:
        weights, config, embedding, pools, scratch = context
        n, width = batch.max_rows, config.width
        space = workspace(config, n, pools.kv)
        space.given, space.embedded = hidden, device.empty(n, width)
        space.left, space.right = (device.empty(n, width, dtype=np.float16) for _ in range(2))
        ops = Ops(config, batch, prefill=False, empty=scratch.fork().alloc)
        memory, shared = Memory.of(config, pools), {table: embedding}
        on = Device(ops, weights, space, memory, eps=config.norm_eps, config=config, shared=shared)
        start, (block,), _ = Launches.of(network.program, on)
        self._steps, self.stream = steps_of([*start, *block]), space.stream
        if on.stream is network.given:
            address, every = np.array([hidden.data.ptr], np.uint64), np.arange(n, dtype=np.int32)
            self._steps.insert(0, Features(device.array(address), batch.counts, device.array(every), width, space.stream))

    def __call__(self, n: int) -> None:
        """Launch for `n` rows."""
        for step in self._steps:
            step(n)
