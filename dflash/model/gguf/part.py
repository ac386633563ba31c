"""One GGUF file: a checked header and memory-mapped weights, which are not read unless `in_memory` does."""

import math
from dataclasses import dataclass
from mmap import ACCESS_READ, PAGESIZE, mmap
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dflash.errors import FormatError, ModelError, NotFound, Unsupported
from dflash.kernels.formats import FORMATS
from dflash.kernels.formats.types import BY_ID
from dflash.model.gguf.header import HeaderReader, Value, quoted

_MAGIC = b"GGUF"
_LFS_POINTER = b"vers"  # "version https://git-lfs.github.com/spec/v1"
_VERSIONS = (2, 3)
_ALIGNMENT = "general.alignment"

_PIECE = 32 << 20
"""Bytes of one read into memory: Linux cuts a read at 2 GiB, and Ctrl-C acts between two reads."""


class TensorInfo(NamedTuple):
    """Location, shape and type of a tensor.

    shape: shape in NumPy order: the row length is last, which GGUF lists first.
    type: name of the block type, such as ``"Q4_K"``.
    offset: offset of the first byte from the start of the file.
    part: index of the file in a split model, from 0.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    n_bytes: int
    part: int

    @property
    def device_bytes(self) -> int:
        """Bytes on a GPU, which holds types without a kernel as F16."""
        return self.n_bytes if self.type in FORMATS else 2 * math.prod(self.shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.n_bytes // math.prod(self.shape[:-1])


@dataclass(frozen=True, slots=True)
class GGUFPart:
    """One open file of a model."""

    path: Path
    data: mmap
    metadata: dict[str, Value]
    tensors: dict[str, TensorInfo]


def open_part(path: Path, number: int = 0) -> GGUFPart:
    """Map a file, then read and check its header. number: index of the file in a split model, from 0."""
    data = _map(path)
    try:
        reader = HeaderReader(data, path.name)
        n_tensors, n_keys = _read_counts(reader, data)
        metadata = _read_metadata(reader, n_keys)
        tensors = _read_tensors(reader, n_tensors, number)
        return GGUFPart(path, data, metadata, _place(reader, tensors, metadata, len(data)))
    except BaseException:
        data.close()
        raise


def _in_folder(folder: Path) -> str:
    """Return what is wrong with a folder in place of a file, with the names of a few files that it holds."""
    names = sorted(path.name for path in folder.glob("*.gguf"))
    known = f"; it holds {', '.join(names[:4])}{', ...' * (len(names) > 4)}" if names else ""
    return f"a folder, wanted a GGUF file{known}"


def _map(path: Path) -> mmap:
    try:
        if not path.is_file():
            raise NotFound(_in_folder(path) if path.is_dir() else "there is no such file", path=path)
        with path.open("rb") as file:
            if file.seek(0, 2) < len(_MAGIC):
                raise FormatError(f"not a GGUF file, it has {file.tell()} bytes", path=path)
            return mmap(file.fileno(), 0, access=ACCESS_READ)
    except OSError as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"can't be read: {error.strerror}", path=path) from error


def in_memory(path: Path, size: int) -> memoryview:
    """Read a file of `size` bytes. Returns: read-only memory that starts on a page; it ends with its last user."""
    # NumPy asks Linux for pages of 2 MiB, of which a token has to look up 512 times fewer than of 4 KiB
    memory = np.empty(size + PAGESIZE, np.uint8)
    view = memory[-memory.ctypes.data % PAGESIZE :][:size].data
    read = 0
    try:
        with path.open("rb", buffering=0) as file:
            while n := file.readinto(view[read : read + _PIECE]):
                read += n
    except OSError as error:
        raise ModelError(f"can't be read: {error.strerror}", path=path) from error
    if read < size:
        raise FormatError(f"ended after {read} of {size} bytes while it was read into memory", path=path)
    return view.toreadonly()


def _read_counts(reader: HeaderReader, data: mmap) -> tuple[int, int]:
    magic = data[:4]
    if magic == _LFS_POINTER:
        reader.fail("a Git LFS pointer, not the model itself: fetch it with `git lfs pull`")
    if magic != _MAGIC:
        reader.fail(f"not a GGUF file: begins with {magic!r}, wanted {_MAGIC!r}")
    reader.position = 4
    version = reader.number("<u4", "the version")
    if version not in _VERSIONS:
        if version and version & 0xFFFF == 0:
            raise Unsupported(f"{reader.file}: a big-endian GGUF file, only little-endian ones are read")
        if version == 1 or version == _VERSIONS[-1] + 1:
            raise Unsupported(f"{reader.file}: GGUF version {version}, supported are 2 and 3")
        reader.fail(f"GGUF version {version}, known are 1 to 3", 4)
    return (
        reader.count("the number of tensors", smallest=8 + 4 + 8 + 4 + 8),
        reader.count("the number of keys", smallest=8 + 4 + 1),
    )


def _read_metadata(reader: HeaderReader, n_keys: int) -> dict[str, Value]:
    metadata = {}
    for i in range(n_keys):
        at = reader.position
        key = reader.string(f"the name of key {i}")
        if key in metadata:
            reader.fail(f"key {quoted(key)} is there twice", at)
        metadata[key] = reader.value(f"key {quoted(key)}")
    return metadata


def _read_tensors(reader: HeaderReader, n_tensors: int, part: int) -> dict[str, TensorInfo]:
    """Read the tensor list; its offsets count from the start of the data section."""
    tensors = {}
    for i in range(n_tensors):
        at = reader.position
        name = reader.string(f"the name of tensor {i}")
        if name in tensors:
            reader.fail(f"tensor {quoted(name)} is there twice", at)
        tensors[name] = _read_tensor(reader, name, part)
    return tensors


def _read_tensor(reader: HeaderReader, name: str, part: int) -> TensorInfo:
    what = quoted(name)
    n_dims = reader.number("<u4", f"the number of dimensions of {what}")
    if not 1 <= n_dims <= 4:
        reader.fail(f"{what} has {n_dims} dimensions, must have 1 to 4", reader.position - 4)
    at = reader.position
    shape = tuple(reader.number("<u8", f"a dimension of {what}") for _ in range(n_dims))[::-1]
    if 0 in shape:
        reader.fail(f"{what} has shape {shape}, every dimension must be at least 1", at)
    type_id = reader.number("<u4", f"the type of {what}")
    block = BY_ID.get(type_id)
    if block is None:
        reader.fail(f"{what} has the unknown tensor type {type_id}; --plugin FILE.py may define it", reader.position - 4)
    if shape[-1] % block.elements:
        reader.fail(f"{what}: {block.name} rows must be a multiple of {block.elements}, got {shape[-1]}", at)
    n_bytes = math.prod(shape) // block.elements * block.n_bytes
    return TensorInfo(name, shape, block.name, reader.number("<u8", f"the offset of {what}"), n_bytes, part)


def _place(
    reader: HeaderReader, tensors: dict[str, TensorInfo], metadata: dict[str, Value], size: int
) -> dict[str, TensorInfo]:
    """Convert offsets to file offsets; check that tensors are aligned, inside the file and do not overlap."""
    alignment = metadata.get(_ALIGNMENT, 32)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        reader.fail(f"key {_ALIGNMENT!r} is {alignment!r:.40}, must be a power of two")
    start = -(-reader.position // alignment) * alignment
    placed = {}
    end, before = start, ""
    for tensor in sorted(tensors.values(), key=lambda tensor: tensor.offset):
        what, at = quoted(tensor.name), start + tensor.offset
        if tensor.offset % alignment:
            reader.fail(f"{what} is at {tensor.offset} of the data, must be a multiple of {alignment}", at)
        if at + tensor.n_bytes > size:
            reader.fail(f"{what} is cut off: it ends at {at + tensor.n_bytes}, the file at {size}", at)
        if at < end:
            reader.fail(f"{what} overlaps {quoted(before)}, which ends at {end:#x}", at)
        end, before = at + tensor.n_bytes, tensor.name
        placed[tensor.name] = tensor._replace(offset=at)
    return {name: placed[name] for name in tensors}
