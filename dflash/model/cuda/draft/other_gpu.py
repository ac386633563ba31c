"""A block draft model on another GPU than its target."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dflash.kernels.arrays import GpuArray
from dflash.kernels.gpu import jit
from dflash.kernels.gpu.batch import DeviceBatch
from dflash.kernels.gpu.devices import Devices, number_of
from dflash.kernels.gpu.staging import Staging
from dflash.model.candidates import Candidates
from dflash.model.cuda.draft.model import DeviceBlockDraft
from dflash.model.cuda.draft.target_copy import DRAFT, SendDraft, TargetCopy
from dflash.model.cuda.model import DeviceModel
from dflash.model.draft.config import DraftConfig
from dflash.model.draft.context import Rows
from dflash.model.draft.files.source import Source
from dflash.model.draft.request import DraftRequest
from dflash.model.draft.state import DraftState
from dflash.model.draft.vocabulary import Vocabulary
from dflash.model.protocols.device_drafter import DeviceDrafts


class OtherGpuDraft(DeviceBlockDraft):
    """Draft model on a GPU of its own; its drafts have the bits of one on the target's GPU, if the two are of one kind.

    Each step copies tokens and features of the target's pass to it, and draft trees back, in the order of the two streams:
    the host does not wait. All launches and allocations of the draft are made while its GPU is the current one.

    config, source, target, vocabulary, **settings: see `DeviceBlockDraft`. Embedding and LM head are read from the target's
        file once more unless the draft has its own.
    """

    def __init__(
        self, config: DraftConfig, source: Source, target: DeviceModel, vocabulary: Vocabulary, *, gpu: int, **settings: Any
    ) -> None:
        self._devices = Devices((number_of(target.sampled_ids), gpu), direct=False)
        with self._gpu, Staging(target.threads) as staging:
            self._copy = TargetCopy(target, self._devices, config.target_layer_ids, staging)
            super().__init__(config, source, self._copy, vocabulary, **settings)
        self._send = SendDraft(self._block.out, target.batch, self._devices)
        jit.warm()

    @property
    def _gpu(self) -> Any:
        """Context in which the draft's GPU is the current one."""
        return self._devices[DRAFT]

    def warm(self) -> Iterator[None]:
        """See `DeviceBlockDraft.warm`; between the steps, the caller's GPU is current."""
        steps, more = super().warm(), True
        while more:
            with self._gpu:
                more = next(steps, False) is None
            yield

    def read_many(self, items: Sequence[tuple[DraftState, Rows]], features: Mapping[int, GpuArray]) -> None:
        """See `DeviceBlockDraft.read_many`."""
        with self._gpu:
            if features is self._copy.source and self._copy.latest is not None:
                super().read_many(items, self._copy.latest.captured)
                return
            for some, copies in self._copy.copied(items, features):
                super().read_many(some, copies)

    def catch_up(self, states: Sequence[DraftState]) -> None:
        """See `DeviceBlockDraft.catch_up`."""
        with self._gpu:
            super().catch_up(states)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Candidates]:
        """See `DeviceBlockDraft.propose`."""
        with self._gpu:
            return super().propose(requests)

    def draft_on_device(
        self, device_requests: Sequence[DraftRequest[DraftState]], anchors: Sequence[int]
    ) -> DeviceDrafts | None:
        """See `DeviceBlockDraft.draft_on_device`."""
        with self._gpu:
            return super().draft_on_device(device_requests, anchors)

    def launch_ahead(
        self, device_requests: Sequence[DraftRequest[DraftState]], order: Sequence[int], taken: Sequence[int] = ()
    ) -> bool:
        """See `DeviceDrafter.launch_ahead`."""
        with self._gpu:
            self._copy.receive()
            return super().launch_ahead(device_requests, order, taken)

    def writer(self, batch: DeviceBatch) -> SendDraft:
        """See `DeviceDrafter.writer`."""
        assert batch is self._copy.target.batch
        return self._send
