"""Weights of a draft model by canonical name, from any kind of file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dflash.errors import FormatError, Unsupported
from dflash.kernels.formats import Matrix
from dflash.model.draft.files.names import FORKS, canonical
from dflash.model.draft.files.safetensors import Entry, open_folder
from dflash.model.gguf.file import GGUFFile
from dflash.model.gguf.header import quoted
from dflash.model.gguf.keys import Keys

_FLOATS = ("F32", "F16", "BF16")


class Source(Protocol):
    """Tensors of a draft model by canonical name; see `dflash.model.draft.files.names`.

    Attributes
    ----------
    shapes : Mapping of str to tuple of int
        Shape of each tensor in the file.
    types : Mapping of str to str
        Stored type of each tensor.
    sizes : Mapping of str to int
        Stored bytes of each tensor.
    tokens : list of str
        The vocabulary; empty if the file has none.
    fork : bool
        Whether files of the kind are known to hold a wrong rotation base.
    """

    shapes: Mapping[str, tuple[int, ...]]
    types: Mapping[str, str]
    sizes: Mapping[str, int]
    tokens: list[str]
    fork: bool

    def has(self, name: str) -> bool:
        """Return True if the file holds the tensor."""
        ...

    def matrix(self, name: str) -> Matrix:
        """Return a matrix (R, K), packed and memory-mapped."""
        ...

    def vector(self, name: str) -> NDArray[np.float32]:
        """Return a small tensor as float32, in its shape."""
        ...

    def targets(self) -> NDArray[np.int32]:
        """Return the target's token id for each token of the draft's own vocabulary (R,), from ``d2t``."""
        ...

    def close(self) -> None:
        """Close the files; arrays that were returned stay valid."""
        ...


class DraftLayerWeights:
    """The tensors of one layer, named without ``blk.i.``."""

    def __init__(self, source: Source, i: int) -> None:
        self._source, self._prefix = source, f"blk.{i}."

    def matrix(self, name: str) -> Matrix:
        """Return a matrix of the layer; see `Source.matrix`."""
        return self._source.matrix(self._prefix + name)

    def vector(self, name: str) -> NDArray[np.float32]:
        """Return a vector of the layer; see `Source.vector`."""
        return self._source.vector(self._prefix + name)


class GGUFSource:
    """Tensors of a GGUF file.

    Parameters
    ----------
    file : GGUFFile
        Open.

    Raises
    ------
    FormatError
        If two tensors have the same canonical name, or the architecture is not a string.
    """

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        self._names = _distinct([(canonical(name, torch=False), name) for name in file.tensors])
        self.shapes: Mapping[str, tuple[int, ...]] = {
            name: file.tensors[theirs].shape for name, theirs in self._names.items()
        }
        self.types: Mapping[str, str] = {name: file.tensors[theirs].type for name, theirs in self._names.items()}
        self.sizes: Mapping[str, int] = {name: file.tensors[theirs].n_bytes for name, theirs in self._names.items()}
        tokens = file.metadata.get("tokenizer.ggml.tokens")
        self.tokens = tokens if isinstance(tokens, list) else []
        self.fork = Keys(file.metadata, "general").text("architecture", None) in FORKS

    def has(self, name: str) -> bool:
        """See `Source.has`."""
        return name in self._names

    def matrix(self, name: str) -> Matrix:
        """See `Source.matrix`."""
        theirs = self._names[name]
        return Matrix(self._file.data(theirs), self._file.tensors[theirs].type, theirs)

    def vector(self, name: str) -> NDArray[np.float32]:
        """See `Source.vector`."""
        return self._file.array(self._names[name])

    def targets(self) -> NDArray[np.int32]:
        """Return ``d2t``, which holds the target's ids in this format; see `Source.targets`."""
        kind = {"I64": "<i8", "I32": "<i4"}.get(self.types["d2t"])
        if kind is None:
            raise FormatError(f"tensor 'd2t' is {self.types['d2t']}, must be I64 or I32")
        return _ids(self._file.data(self._names["d2t"]).reshape(-1).view(kind).astype(np.int64))

    def close(self) -> None:
        """See `Source.close`."""
        self._file.close()


class FolderSource:
    """Tensors of a folder of safetensors files.

    Parameters
    ----------
    folder : Path

    Raises
    ------
    NotFound, FormatError
        As raised by `open_folder`. FormatError also if two tensors have the same canonical name.
    """

    def __init__(self, folder: Path) -> None:
        found = [(name, entry) for file in open_folder(folder) for name, entry in file.tensors.items()]
        self._entries: dict[str, Entry] = _distinct([(canonical(name, torch=True), entry) for name, entry in found])
        self.shapes: Mapping[str, tuple[int, ...]] = {name: entry.shape for name, entry in self._entries.items()}
        self.types: Mapping[str, str] = {name: entry.type for name, entry in self._entries.items()}
        self.sizes: Mapping[str, int] = {name: entry.data.nbytes for name, entry in self._entries.items()}
        self.tokens: list[str] = []
        self.fork = False

    def has(self, name: str) -> bool:
        """See `Source.has`."""
        return name in self._entries

    def matrix(self, name: str) -> Matrix:
        """See `Source.matrix`."""
        entry = self._floats(name)
        return Matrix(entry.data.reshape(entry.shape[0], -1), entry.type, name)

    def vector(self, name: str) -> NDArray[np.float32]:
        """See `Source.vector`."""
        entry = self._floats(name)
        if entry.type == "BF16":
            return (_numbers(entry, "<u2").astype(np.uint32) << 16).view(np.float32)
        return _numbers(entry, "<f2" if entry.type == "F16" else "<f4").astype(np.float32)

    def targets(self) -> NDArray[np.int32]:
        """Return the sums of ``d2t``, which holds offsets in this format, and own ids; see `Source.targets`."""
        entry = self._entries["d2t"]
        if entry.type not in {"I64", "I32"}:
            raise FormatError(f"tensor 'd2t' is {entry.type}, must be I64 or I32")
        offsets = _numbers(entry, "<i8" if entry.type == "I64" else "<i4").reshape(-1).astype(np.int64)
        return _ids(offsets + np.arange(len(offsets)))

    def close(self) -> None:
        """See `Source.close`."""
        self._entries = {}

    def _floats(self, name: str) -> Entry:
        entry = self._entries[name]
        if entry.type not in _FLOATS:
            raise Unsupported(f"tensor {quoted(name)} is {entry.type}, must be one of {', '.join(_FLOATS)}")
        return entry


def _numbers(entry: Entry, kind: str) -> NDArray:
    # a copy, since the data of a tensor need not be aligned to its element size
    return np.frombuffer(entry.data.tobytes(), kind).reshape(entry.shape)


def _ids(ids: NDArray[np.int64]) -> NDArray[np.int32]:
    if len(ids) and (ids.min() < 0 or ids.max() >= 1 << 31 or len(np.unique(ids)) != len(ids)):
        raise FormatError("tensor 'd2t' must map each token of the draft to a different token of the target")
    return ids.astype(np.int32)


def _distinct(pairs: list) -> dict:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise FormatError(f"the draft holds two tensors for the name {quoted(max(names, key=names.count))}")
    return found
