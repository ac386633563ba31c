"""GGUF headers written byte by byte, right or wrong, where a writer would refuse."""

import struct
from collections.abc import Iterable
from pathlib import Path

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORMATS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def number(kind: int, value: float) -> bytes:
    return struct.pack("<" + FORMATS[kind], value)


def key(name: str | bytes, kind: int, value: bytes) -> bytes:
    return string(name) + struct.pack("<I", kind) + value


def array(kind: int, items: Iterable[bytes], count: int | None = None) -> bytes:
    items = list(items)
    return struct.pack("<IQ", kind, len(items) if count is None else count) + b"".join(items)


def tensor(name: str | bytes, dims: Iterable[int], kind: int = 0, offset: int = 0) -> bytes:
    dims = list(dims)
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def gguf(
    keys: Iterable[bytes] = (),
    tensors: Iterable[bytes] = (),
    data: bytes = b"",
    *,
    alignment: int = 32,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_tensors: int | None = None,
    n_keys: int | None = None,
) -> bytes:
    keys, tensors = list(keys), list(tensors)
    counts = (len(tensors) if n_tensors is None else n_tensors, len(keys) if n_keys is None else n_keys)
    header = magic + struct.pack("<IQQ", version, *counts) + b"".join(keys + tensors)
    return header + bytes(-len(header) % alignment) + data if data else header


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path
