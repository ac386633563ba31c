"""Mask the logits of tokens outside the draft vocabulary."""

from dflash.kernels.arrays import GpuArray

_BYTE = 0xFE


def mask_all(logits: GpuArray) -> None:
    """Set float32 logits, contiguous on the device, to -1.7e38: far below all real logits, but finite."""
    logits.data.memset_async(_BYTE, logits.nbytes)
