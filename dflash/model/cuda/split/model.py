"""A model on several GPUs, with the interface of `DeviceModel`."""

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from dflash.errors import Unsupported
from dflash.kernels.exchange.cuda import Signals
from dflash.kernels.formats.cuda import PackedWeight
from dflash.kernels.gpu.devices import Devices
from dflash.kernels.gpu.launch import each_is_waited_for
from dflash.kernels.gpu.staging import Staging
from dflash.kernels.ragged import PAGE
from dflash.model.config import Config
from dflash.model.cuda.model import CHUNK, DeviceModel, flushes
from dflash.model.cuda.pool_backend import DEVICE
from dflash.model.cuda.split.context import SplitContext
from dflash.model.cuda.split.layer_passes import LayerDecode, LayerPrefill
from dflash.model.cuda.split.tensor_passes import TensorDecode, TensorPrefill
from dflash.model.cuda.weights import DeviceWeights
from dflash.model.gguf.file import GGUFFile
from dflash.model.split.plan import SplitPlan
from dflash.model.split.pools import SplitPools
from dflash.model.split.shards import Shard, ShardWeights
from dflash.model.weights import Weights


class ShardDeviceWeights(DeviceWeights[ShardWeights]):
    """Weights whose matrices know the rows of the whole matrix, which determine the K slices of a multiply."""

    def matrix(self, name: str) -> PackedWeight:
        """See `DeviceWeights.matrix`."""
        return self._of_whole(name, super().matrix(name))

    def halves(self, name: str) -> PackedWeight:
        """See `DeviceWeights.halves`."""
        return self._of_whole(name, super().halves(name))

    def _of_whole(self, name: str, weight: PackedWeight) -> PackedWeight:
        weight.whole_rows = weight.shape[-2] * self.host.n_parts(name)
        return weight


class SplitDeviceModel(DeviceModel):
    """Runs tokens through layers that are divided among GPUs; logits and tokens have the bits of one GPU.

    Embedding, LM head, sampling and drafts are on the first GPU, which must be the current device of every thread that uses
    the model.

    file: open; weights are read once and kept on the devices, repacked.
    slots, kv, threads, chunk: see `DeviceModel`.
    """

    def __init__(
        self,
        file: GGUFFile,
        config: Config,
        plan: SplitPlan,
        devices: Devices,
        *,
        slots: int,
        kv: str = "f16",
        threads: int = 4,
        chunk: int = CHUNK,
    ) -> None:
        if plan.kind == "tensor" and each_is_waited_for():
            raise Unsupported("split 'tensor': GPUs wait for each other, so that DFLASH_DEBUG_SYNC=1 can't wait for one")
        self.plan, self._devices = plan, devices
        config = replace(config, context=plan.context)
        memory = {"pages": plan.n_pages, "slots": slots, "unpacked_bytes": sum(part.unpacked for part in plan.devices)}
        super().__init__(file, config, kv=kv, threads=threads, chunk=chunk, **memory)

    def _load(self, file: GGUFFile, *, pages: int, slots: int, kv: str) -> None:
        devices, config, plan, host = self._devices, self.config, self.plan, Weights(file, self.config)
        contexts = [devices[i] for i in range(len(devices))]
        self.pools = pools = SplitPools(plan, contexts, slots=slots, kv=kv, backend=DEVICE)
        most = min(pages, -(-config.context // PAGE))
        self._flushes = []
        for i, part in enumerate(pools.parts):
            with devices[i]:
                self._flushes += flushes(part)
        with ExitStack() as stack:
            stagings = []
            for context in contexts:
                with context:
                    stagings.append(stack.enter_context(Staging(self.threads)))
            tables: list[DeviceWeights[Any]] = [DeviceWeights(host, staging) for staging in stagings]
            self.weights = tables[0]
            if plan.kind == "layer":
                parts = SplitContext(devices, plan, config, tables, tables, pools)
                stages = LayerPrefill(parts, self.prefill_chunk, most)
                self._prefill, self._decode = stages, LayerDecode(parts, most, stages.arenas)
                return
            weights = [
                ShardDeviceWeights(ShardWeights(host, config, Shard(rank, len(devices))), staging)
                for rank, staging in enumerate(stagings)
            ]
            parts = SplitContext(devices, plan, config, weights, [self.weights, *weights[1:]], pools)
            signals = Signals(contexts), Signals(contexts)
            ranks = TensorPrefill(parts, signals, self.prefill_chunk, most)
            self._prefill, self._decode = ranks, TensorDecode(parts, signals, most, ranks.arenas)

    def finish(self) -> None:
        """Wait for all launched work of all GPUs; see `DeviceModel.finish`."""
        self._devices.synchronize()
