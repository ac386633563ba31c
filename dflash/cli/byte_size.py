"""Sizes of memory on the command line."""

import re

from dflash.errors import RequestError

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE | re.ASCII)
_SHIFTS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_MAX = 1 << 60
"""Most bytes that an option accepts: more than any machine has, and exact as a float."""


def byte_size(option: str, text: str | None) -> int | None:
    """Return the bytes that a text names, as ``4G``, ``512MiB``, ``1.5g`` or ``1048576``; None for None.

    K, M, G and T are powers of 1024.

    Raises
    ------
    RequestError
        If the text is no size of at least one byte; the message names the option.
    """
    if text is None:
        return None
    match = _SIZE.fullmatch(text.strip())
    size = int(float(match[1]) * (1 << _SHIFTS[match[2].lower()])) if match and len(match[1]) < 20 else 0
    if not 1 <= size <= _MAX:
        raise RequestError(f"{option}: must be a number of bytes, as 4G, 512M or 1048576, got {text[:40]!r}")
    return size
