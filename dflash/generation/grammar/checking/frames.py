"""Messages between the engine's process and the one that checks grammars: a length, then that many bytes."""

import struct
from collections.abc import Callable

_LENGTH = struct.Struct("<I")


def packed(data: bytes) -> bytes:
    """Return the bytes of a message."""
    return _LENGTH.pack(len(data)) + data


def read_message(read: Callable[[int], bytes]) -> bytes:
    """Read one message. read: returns up to that many bytes, none at the end."""
    return _exactly(read, _LENGTH.unpack(_exactly(read, _LENGTH.size))[0])


def _exactly(read: Callable[[int], bytes], n_bytes: int) -> bytes:
    parts: list[bytes] = []
    while n_bytes:
        try:
            part = read(min(n_bytes, 1 << 20))
        except ConnectionError:
            part = b""
        if not part:
            raise EOFError("the connection is closed")
        parts.append(part)
        n_bytes -= len(part)
    return b"".join(parts)
