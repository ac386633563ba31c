"""Logits of tokens that are not to be guessed."""

from typing import Any

_BYTE = 0xFE


def bury(logits: Any) -> None:
    """Set float32 logits, contiguous on the device, to -1.7e38: far below all others, and finite as they."""
    logits.data.memset_async(_BYTE, logits.nbytes)
