"""Penalties and logit bias on a GPU: applied before sampling and undone after it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dflash.kernels.arrays import GpuArray, Stream
from dflash.kernels.gpu import device
from dflash.kernels.gpu.jit import kernel
from dflash.kernels.gpu.mirror import Mirror
from dflash.kernels.sample.params import LogitEdits, SampleRequest

EDIT = np.dtype(
    [(name, np.int32) for name in ("text", "n_text", "draft", "n_draft", "bias", "n_bias", "saved")]
    + [(name, np.float32) for name in ("repetition", "presence", "frequency")]
)
"""``Edit`` in penalties.cu."""

ENTRY = np.dtype([("token", np.int32), ("number", np.float32)])
"""``Entry`` in penalties.cu."""

_SOURCE = Path(__file__).with_name("penalties.cu")
_THREADS = 512
_ROOM = 1 << 14  # smallest capacity of the entries and of the saved logits


class DeviceEdits:
    """Applies the logit edits of a step's rows, and restores the logits. logits: float32 (R, V); logits on the device."""

    def __init__(self, logits: GpuArray) -> None:
        self._logits, self._edits = logits, Mirror(len(logits), EDIT)
        self._kernels = [
            kernel(_SOURCE, entry, dependent=True, VOCAB=logits.shape[1], THREADS=_THREADS)
            for entry in ("apply_penalties", "restore_logits")
        ]
        self._reserve(_ROOM, _ROOM)

    def make(self, requests: Sequence[SampleRequest], n_rows: int, stream: Stream) -> None:
        """Launch the edits of the requests."""
        asking = [(request.first, request.edits) for request in requests if request.edits is not None]
        lists = [part for _, edits in asking for part in _lists(edits)]
        n_entries = sum(len(part) for part in lists)
        n_saved = self._describe(asking, n_rows)
        if n_entries > len(self._entries.host) or n_saved > len(self._saved):
            self._reserve(2 * n_entries, 2 * n_saved)
        if lists:
            np.concatenate(lists, out=self._entries.host[:n_entries])
        self._edits.upload(n_rows, stream)
        self._entries.upload(n_entries, stream)
        self._make(stream, grid=n_rows)

    def undo(self, n_rows: int, stream: Stream) -> None:
        """Launch the restoration of the logits, bit for bit."""
        self._undo(stream, grid=n_rows)

    def _reserve(self, n_entries: int, n_saved: int) -> None:
        self._entries, self._saved = Mirror(max(n_entries, _ROOM), ENTRY), device.zeros(max(n_saved, _ROOM))
        args = self._logits, self._edits.device, self._entries.device, self._saved
        self._make, self._undo = (made.bind(1, _THREADS, args) for made in self._kernels)

    def _describe(self, asking: Sequence[tuple[int, LogitEdits]], n_rows: int) -> int:
        """Write the record of each row, with the offsets of its lists; return the number of logits to save."""
        rows = self._edits.host
        rows[:n_rows] = np.zeros(1, EDIT)
        at = saved = 0
        for first, e in asking:
            n_text, n_bias = len(e.ids), len(e.bias.ids)
            draft = at + n_text + n_bias
            for row, own in enumerate(e.drafts, first):
                numbers = e.repetition, e.presence, e.frequency
                rows[row] = (at, n_text, draft, len(own), at + n_text, n_bias, saved, *numbers)
                draft += len(own)
                saved += n_text + len(own) + n_bias
            at = draft
        return saved


def _lists(edits: LogitEdits) -> list[Any]:
    """Return lists of entries: of the sequence's tokens, of the bias, and of each draft."""
    lists = [_entries(edits.ids, edits.produced), _entries(*edits.bias)]
    return lists + [np.array(list(own.items()), ENTRY) for own in edits.drafts]


def _entries(tokens: GpuArray, numbers: Any) -> Any:
    """Return entries of tokens and their numbers."""
    out = np.empty(len(tokens), ENTRY)
    out["token"], out["number"] = tokens, numbers
    return out
