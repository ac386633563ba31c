"""Block draft models on a GPU."""

from dflash.model.cuda.draft.model import DeviceBlockDraft
from dflash.model.cuda.draft.other_gpu import OtherGpuDraft

__all__ = ["DeviceBlockDraft", "OtherGpuDraft"]
