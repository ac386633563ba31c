"""Files of saved states: safetensors with a checksum, private, written completely or not at all.

A file is read only if it is a regular file that nobody but this user or root can have written. Symbolic links are not
followed. The last tensor, ``sha256``, is the checksum of all bytes before it.
"""

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash.errors import FormatError, NotFound
from dflash.kernels.compile_cache.folder import check_owner
from dflash.model.draft.files.safetensors import SafeTensors

TEMPORARY = ".writing-"
"""First characters of the names of files that are being written."""

_TYPES = {"F32": np.float32, "F16": np.uint16, "I64": np.int64, "I32": np.int32, "I8": np.int8, "U8": np.uint8}
_NAMES = {np.dtype(kind): name for name, kind in _TYPES.items()}
_CHECKSUM = "sha256"
_CHECKSUM_BYTES = hashlib.sha256().digest_size
_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
# without O_NONBLOCK, opening a pipe would wait for its writer


def write_file(path: Path, metadata: Mapping[str, str], arrays: Mapping[str, NDArray[Any]]) -> int:
    """Write a file with mode 0600 under a temporary name, then rename it; return its bytes.

    arrays: arrays of float32, int32, int64, int8, uint8, or uint16, which holds the bits of float16.
    """
    ordered = sorted(arrays.items(), key=lambda item: -item[1].itemsize)  # so that each array is aligned
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for name, array in ordered:
        header[name] = {"dtype": _NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    header[_CHECKSUM] = {"dtype": "U8", "shape": [_CHECKSUM_BYTES], "data_offsets": [at, at + _CHECKSUM_BYTES]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=TEMPORARY)
    try:
        with os.fdopen(descriptor, "wb") as file:
            parts: list[bytes | memoryview] = [len(text).to_bytes(8, "little"), text]
            parts += [np.ascontiguousarray(array).data.cast("B") for _, array in ordered if array.size]
            for part in parts:
                file.write(part)
                digest.update(part)
            file.write(digest.digest())
        os.replace(temporary, path)  # noqa: PTH105
    except BaseException:
        with suppress(OSError):
            Path(temporary).unlink()
        raise
    return 8 + len(text) + at + _CHECKSUM_BYTES


def read_file(path: Path, max_bytes: int) -> tuple[dict[str, str], dict[str, NDArray[Any]]]:
    """Read a file that `write_file` has written."""
    try:
        descriptor = os.open(path, _FLAGS)
    except FileNotFoundError as error:
        raise NotFound("there is no such file", path=path) from error
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        check_owner(status)
        if not stat.S_ISREG(status.st_mode):
            raise FormatError("is no regular file", path=path)
        if status.st_size > max_bytes:
            raise FormatError(f"has {status.st_size} bytes, at most {max_bytes} are read", path=path)
        data = bytearray(file.read())
    if hashlib.sha256(memoryview(data)[:-_CHECKSUM_BYTES]).digest() != data[-_CHECKSUM_BYTES:]:
        raise FormatError(f"is no saved state or damaged: the checksum of its {len(data)} bytes is wrong", path=path)
    found = SafeTensors.parse(path, data)
    arrays = {name: tensor for name, tensor in found.tensors.items() if name != _CHECKSUM}
    strange = {tensor.type for tensor in arrays.values()} - set(_TYPES)
    metadata = found.metadata
    if strange or not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise FormatError("is no saved state of dflash", path=path)
    return metadata, {name: each.data.view(_TYPES[each.type]).reshape(each.shape) for name, each in arrays.items()}
