"""Weights of a draft model by canonical name, from any kind of file."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dflash.errors import FormatError, Unsupported
from dflash.kernels.formats import Matrix
from dflash.model.draft.files.names import FORKS, canonical
from dflash.model.draft.files.safetensors import Entry, open_folder
from dflash.model.gguf.file import GGUFFile
from dflash.model.gguf.floats import FLOATS, to_float32
from dflash.model.gguf.header import quoted
from dflash.model.gguf.keys import Keys

_PLAIN = ("I64", "I32", "BOOL", "U8", "I8")
"""Types of tensors that are no weights."""


class Source:
    """Tensors of a draft model by canonical name; see `dflash.model.draft.files.names`.

    entries: the tensors, memory-mapped. A matrix (R, K) may be packed.
    tokens: the vocabulary; empty if the file has none.
    fork: whether files of the kind are known to hold a wrong rotation base.
    offsets: whether ``d2t`` holds offsets from the draft's own ids instead of the target's ids.
    types, sizes: stored type and bytes of each tensor.
    """

    def __init__(
        self, entries: dict[str, Entry], *, tokens: Sequence[str] = (), fork: bool = False, offsets: bool = False
    ) -> None:
        self._entries, self.tokens, self.fork, self._offsets = entries, tokens, fork, offsets
        self.shapes = {name: entry.shape for name, entry in entries.items()}
        self.types = {name: entry.type for name, entry in entries.items()}
        self.sizes = {name: entry.data.nbytes for name, entry in entries.items()}

    @classmethod
    def of_gguf(cls, file: GGUFFile) -> "Source":
        """Return the tensors of an open GGUF file, which may be closed afterwards."""
        fork = Keys(file.metadata, "general").text("architecture", None) in FORKS
        tokens = file.metadata.get("tokenizer.ggml.tokens")
        pairs = [
            (canonical(name, torch=False), Entry(tensor.shape, tensor.type, file.data(name)))
            for name, tensor in file.tensors.items()
        ]
        return cls(_distinct(pairs), tokens=tokens if isinstance(tokens, list) else (), fork=fork)

    @classmethod
    def of_folder(cls, folder: Path) -> "Source":
        """Return the tensors of a folder of safetensors files."""
        found = [(name, entry) for file in open_folder(folder) for name, entry in file.tensors.items()]
        return cls(_distinct([(canonical(name, torch=True), entry) for name, entry in found]), offsets=True)

    def has(self, name: str) -> bool:
        """Return True if the file holds the tensor."""
        return name in self._entries

    def entry(self, name: str) -> Entry:
        """Return a tensor as it is in the file."""
        return self._entries[name]

    def matrix(self, name: str) -> Matrix:
        """Return a matrix (R, K), packed and memory-mapped."""
        entry = self._entries[name]
        if entry.type in _PLAIN:
            raise self._wrong(name)
        return Matrix(entry.data.reshape(entry.shape[0], -1), entry.type, name)

    def vector(self, name: str) -> NDArray[np.float32]:
        """Return a small tensor as float32, in its shape."""
        entry = self._entries[name]
        if entry.type not in FLOATS:
            raise self._wrong(name)
        return to_float32(entry.data, entry.type).reshape(entry.shape)

    def targets(self) -> NDArray[np.int32]:
        """Return the target's token id for each token of the draft's own vocabulary (R,), from ``d2t``."""
        kind = {"I64": "<i8", "I32": "<i4"}.get(self.types["d2t"])
        if kind is None:
            raise FormatError(f"tensor 'd2t' is {self.types['d2t']}, must be I64 or I32")
        ids = np.frombuffer(self._entries["d2t"].data.tobytes(), kind).astype(np.int64)
        ids += np.arange(len(ids)) if self._offsets else 0
        if len(ids) and (ids.min() < 0 or ids.max() >= 1 << 31 or len(np.unique(ids)) != len(ids)):
            raise FormatError("tensor 'd2t' must map each token of the draft to a different token of the target")
        return ids.astype(np.int32)

    def close(self) -> None:
        """Release the files; arrays that were returned stay valid."""
        self._entries = {}

    def _wrong(self, name: str) -> Unsupported:
        return Unsupported(f"tensor {quoted(name)} is {self.types[name]}, must be one of {', '.join(FLOATS)}")


def _distinct(pairs: list[tuple[str, Entry]]) -> dict[str, Entry]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise FormatError(f"the draft holds two tensors for the name {quoted(max(names, key=names.count))}")
    return found
