"""Safetensors files: a checked header, and memory-mapped tensors."""

import json
import math
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeGuard

import numpy as np
from numpy.typing import NDArray

from dflash.errors import FormatError, NotFound
from dflash.model.gguf.header import quoted

SIZES = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "BOOL": 1, "U8": 1, "I8": 1}
"""Bytes per element of each supported type."""

_MAX_HEADER = 100 << 20
_INDEX = "model.safetensors.index.json"


class Entry(NamedTuple):
    """One tensor of a file. data: uint8 (n_bytes,); memory-mapped and read-only."""

    shape: tuple[int, ...]
    type: str
    data: NDArray[np.uint8]


class SafeTensors:
    """The tensors of one file. metadata: the header's entry ``__metadata__``, unchecked; None if there is none."""

    def __init__(self, path: Path, tensors: dict[str, Entry], metadata: object = None) -> None:
        self.path, self.tensors, self.metadata = path, tensors, metadata

    @classmethod
    def open(cls, path: Path) -> Self:
        """Map a file and check its header."""
        try:
            with path.open("rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError as error:
            raise NotFound("there is no such file", path=path) from error
        except (OSError, ValueError) as error:
            raise FormatError(f"can't be read: {getattr(error, 'strerror', None) or error}", path=path) from error
        return cls.parse(path, data)

    @classmethod
    def parse(cls, path: Path, data: mmap.mmap | bytearray) -> Self:
        """Check the header of a file's content; errors name `path`."""
        size = int.from_bytes(data[:8], "little")
        if len(data) < 8 or not 2 <= size <= min(_MAX_HEADER, len(data) - 8):
            raise FormatError(f"is no safetensors file: its header would take {size} of {len(data)} bytes", path=path)
        header = read_json(path, bytes(data[8 : 8 + size]))
        entries = {name: value for name, value in header.items() if name != "__metadata__"}
        body = np.frombuffer(data, np.uint8)[8 + size :]
        tensors = {name: _entry(f"{path.name}: tensor {quoted(name)}", entries[name], body) for name in entries}
        return cls(path, tensors, header.get("__metadata__"))


def write_safetensors(path: Path, tensors: Mapping[str, Entry], metadata: Mapping[str, str]) -> None:
    """Write a file, whole or not at all."""
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, entry in tensors.items():
        header[name] = {"dtype": entry.type, "shape": entry.shape, "data_offsets": [end, end + entry.data.nbytes]}
        end += entry.data.nbytes
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for entry in tensors.values():
            file.write(np.ascontiguousarray(entry.data).data)
    part.replace(path)


def open_folder(folder: Path) -> list[SafeTensors]:
    """Open all files of a model."""
    names = [path.name for path in sorted(folder.glob("*.safetensors"))]
    index = folder / _INDEX
    if index.exists():
        listed = read_object(index).get("weight_map")
        if not isinstance(listed, dict) or not all(
            isinstance(name, str) and name == Path(name).name for name in listed.values()
        ):
            raise FormatError("'weight_map' must map tensors to names of files", path=index)
        names = sorted(set(listed.values()))
    if not names:
        raise NotFound("holds no safetensors file", path=folder)
    if len(names) > 1 and not index.exists():
        raise FormatError(
            f"holds {len(names)} safetensors files and no {_INDEX} that says which belong together", path=folder
        )
    return [SafeTensors.open(folder / name) for name in names]


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; raise `FormatError` if the file can't be read or holds anything else."""
    try:
        return read_json(path, path.read_bytes())
    except OSError as error:
        raise FormatError(f"can't be read: {error.strerror}", path=path) from error


def read_json(path: Path, text: bytes) -> dict[str, Any]:
    """Return the object in JSON text; raise `FormatError` for anything else and for a key that occurs twice."""
    try:
        value = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise FormatError(str(error).splitlines()[0], path=path) from error
    if not isinstance(value, dict):
        raise FormatError("must hold one JSON object", path=path)
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{quoted(max(names, key=names.count))} is there twice")
    return found


def _entry(what: str, entry: object, body: NDArray[np.uint8]) -> Entry:
    """Check one entry of a header and return its tensor."""
    fields = entry if isinstance(entry, dict) else {}
    kind, shape, offsets = (fields.get(name) for name in ("dtype", "shape", "data_offsets"))
    if not isinstance(kind, str) or kind not in SIZES:
        raise FormatError(f"{what} is {kind!r:.40}, must be one of {', '.join(SIZES)}")
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise FormatError(f"{what} has shape {shape!r:.40} at {offsets!r:.60}")
    start, end = offsets
    if not start <= end <= len(body) or end - start != math.prod(shape) * SIZES[kind]:
        raise FormatError(f"{what}: {kind} {shape} can't be bytes {start} to {end} of {len(body)}")
    return Entry(tuple(shape), kind, body[start:end])


def _are_sizes(values: object) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 1 << 60 for value in values)
