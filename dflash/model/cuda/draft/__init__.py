"""Block draft models on a GPU."""

from dflash.model.cuda.draft.model import DeviceBlockDraft

__all__ = ["DeviceBlockDraft"]
