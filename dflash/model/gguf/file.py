"""GGUF files: metadata as Python values, weights as bytes that are memory-mapped, or read once."""

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from itertools import chain
from mmap import mmap
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

import numpy as np

from dflash.errors import FormatError, ModelError, NotFound, OutOfMemory
from dflash.model.gguf.floats import FLOATS, to_float32
from dflash.model.gguf.header import Value, quoted
from dflash.model.gguf.part import GGUFPart, TensorInfo, in_memory, open_part

__all__ = ["GGUFFile", "TensorInfo"]

_PART_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)

_SAMPLE = 1024
"""Bytes of each sample of a fingerprint. A few blocks of any type; a thousand tensors take 3 MB, milliseconds to read."""


class GGUFFile:
    """An open model: one GGUF file, or all parts of a split model.

    Opening reads and checks only the header; weights are memory-mapped and read from disk when they are used, unless `read`
    reads them.

    metadata: keys of the first file; arrays are NumPy arrays, or lists of str.
    """

    def __init__(self, parts: tuple[GGUFPart, ...]) -> None:
        self.path = parts[0].path
        self.parts = tuple(part.path for part in parts)
        self.metadata: Mapping[str, Value] = MappingProxyType(parts[0].metadata)
        self.tensors: dict[str, TensorInfo] = {}
        self._data: tuple[mmap | memoryview, ...] = tuple(part.data for part in parts)
        for name, tensor in chain.from_iterable(part.tensors.items() for part in parts):
            if name in self.tensors:
                raise FormatError(f"tensor {quoted(name)} is in an earlier part, too", path=parts[tensor.part].path)
            self.tensors[name] = tensor

    @classmethod
    def open(cls, path: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None) -> Self:
        """Open a model. path: the file, or any part of a split model (``...-00001-of-00003.gguf``)."""
        path = Path(path)
        with ExitStack() as opened:
            given = open_part(path)
            opened.callback(given.data.close)
            paths, parts = _part_paths(given), list[GGUFPart]()
            for number, name in enumerate(paths):
                part = given if len(paths) == 1 else open_part(name, number)
                opened.callback(part.data.close)
                _check_split(part, number, len(paths))
                parts.append(part)
                if progress is not None:
                    progress(number + 1, len(paths))
            _check_total(parts)
            found = cls(tuple(parts))
            opened.pop_all()
            if len(paths) > 1:
                given.data.close()
            return found

    def read(self, free: int) -> None:
        """Read all parts into memory of this process, which `data` then returns. free: bytes that may be allocated."""
        size = sum(map(len, self._data))
        if size > free:
            raise OutOfMemory(
                f"{self.path.name}: mmap=False reads {size >> 20} MiB into memory, {free >> 20} MiB are free; "
                "map the file, without --no-mmap"
            )
        self._data = tuple(in_memory(path, len(data)) for path, data in zip(self.parts, self._data, strict=True))

    def data(self, name: str) -> np.ndarray:
        """Return the bytes of a tensor as stored in the file.

        Returns: uint8 (..., row_bytes); read-only; the leading axes are those of the tensor. Stays valid after `close`.
        """
        tensor = self._tensor(name)
        raw = np.frombuffer(self._data[tensor.part], np.uint8, tensor.n_bytes, tensor.offset)
        return raw.reshape(*tensor.shape[:-1], tensor.row_bytes)

    def array(self, name: str) -> np.ndarray:
        """Return a copy of an unquantized tensor as float32. name: a tensor of type F32, F16 or BF16."""
        tensor = self._tensor(name)
        if tensor.type not in FLOATS:
            raise FormatError(f"{self.path.name}: {quoted(name)} must be F32, F16 or BF16, is {tensor.type}")
        return to_float32(self.data(name), tensor.type).reshape(tensor.shape)

    def fingerprint(self) -> str:
        """Return a hash of all headers and of samples of each tensor, which differs between models and quantizations.

        Samples are the first, middle and last `_SAMPLE` bytes of a tensor: training and quantization change nearly all.
        """
        if not self._data:
            raise ModelError("the file is closed", path=self.path)
        digest = hashlib.sha256()
        for number, data in enumerate(self._data):
            begin = min((tensor.offset for tensor in self.tensors.values() if tensor.part == number), default=len(data))
            digest.update(f"{len(data)} {begin} ".encode() + data[:begin])
        for tensor in self.tensors.values():
            data, end = self._data[tensor.part], tensor.offset + tensor.n_bytes
            for at in (tensor.offset, tensor.offset + tensor.n_bytes // 2, max(tensor.offset, end - _SAMPLE)):
                digest.update(data[at : min(at + _SAMPLE, end)])
        return digest.hexdigest()

    def close(self) -> None:
        """Release the files; mappings or memory end with the last array that `data` has returned."""
        self._data = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<GGUFFile {str(self.path)!r}: {len(self.tensors)} tensors>"

    def _tensor(self, name: str) -> TensorInfo:
        if not self._data:
            raise ModelError("the file is closed", path=self.path)
        if name not in self.tensors:
            raise FormatError(f"there is no tensor {quoted(name)}", path=self.path)
        return self.tensors[name]


def part_names(name: str) -> list[str]:
    """Return the names of all parts of the model that the file `name` belongs to, in order.

    name: a file name; unless it ends in ``-0000k-of-0000n.gguf`` it is the only part.
    """
    match = _PART_NAME.fullmatch(name)
    if match is None:
        return [name]
    count = int(match["count"])
    return [f"{match['stem']}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]


def _part_paths(part: GGUFPart) -> list[Path]:
    """Return the paths of all parts of the model that a part belongs to.

    A file whose ``split.count`` is at most 1 is a whole model: merged files keep the keys of their parts, with a count of 0.
    """
    count, path = _split_key(part, "split.count", 1), part.path
    if count <= 1:
        return [path]
    paths = [path.with_name(name) for name in part_names(path.name)]
    if len(paths) != count or path not in paths:
        raise FormatError(
            f"key 'split.count' is {count}: the parts must be named ...-00001-of-{count:05d}.gguf and so on, as they were",
            path=path,
        )
    missing = [name.name for name in paths if not name.exists()]
    if missing:
        raise NotFound(f"{len(missing)} of {count} parts are missing: {', '.join(missing[:3])}", path=path)
    return paths


def _check_split(part: GGUFPart, number: int, count: int) -> None:
    """Check that the split keys of a part of several agree with its name."""
    for key, want in (("split.count", count), ("split.no", number)):
        got = _split_key(part, key, 0)
        if count > 1 and got != want:
            raise FormatError(
                f"key {key!r} is {got}, its name says {want}: parts of a split model are named -00001-of-0000N.gguf",
                path=part.path,
            )


def _split_key(part: GGUFPart, key: str, absent: int) -> int:
    value = part.metadata.get(key, absent)
    if type(value) is not int:
        raise FormatError(f"key {key!r} is {value!r:.40}, must be a whole number", path=part.path)
    return value


def _check_total(parts: list[GGUFPart]) -> None:
    want = parts[0].metadata.get("split.tensors.count")
    got = sum(len(part.tensors) for part in parts)
    if len(parts) > 1 and (type(want) is not int or want != got):
        raise FormatError(f"key 'split.tensors.count' is {want!r:.40}, the parts hold {got}", path=parts[0].path)
