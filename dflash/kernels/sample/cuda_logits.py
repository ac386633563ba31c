"""Logits that stay on the device, and what was drawn from them."""

from collections.abc import Sequence
from math import log
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.gpu import device
from dflash.kernels.sample.params import Ask, Law, Top, top_of

if TYPE_CHECKING:
    from dflash.kernels.sample.cuda import Sampler

_UNIT = 44 * log(2)

Proposed = tuple[NDArray[np.int32], NDArray[np.float32]]


class Logits:
    """Rows of logits on the device; they last until the next forward.

    Its length is the number of rows, an index copies a row back, a slice gives a part, ``np.asarray`` copies everything.
    """

    def __init__(self, sampler: "Sampler", start: int, stop: int) -> None:
        self._sampler, self._start, self._stop = sampler, start, stop
        self.shape = stop - start, sampler.logits.shape[1]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: int | slice) -> Any:
        if isinstance(which, slice):
            start, stop, step = which.indices(len(self))
            assert step == 1, "rows of a forward lie together"
            return Logits(self._sampler, self._start + start, self._start + max(start, stop))
        return self._sampler.row(self._start + range(len(self))[which])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        with device.device_errors("logits"):
            host = self._sampler.logits[self._start : self._stop].get(stream=self._sampler.stream)
        return host if dtype is None else host.astype(dtype, copy=False)

    def candidates(self, rows: Sequence[int], laws: Sequence[Law], positions: Sequence[int], width: int) -> Proposed:
        """What some of these rows propose, ids and scores (n, width): as `dflash.kernels.sample.candidates` finds it."""
        ids, scores = self._sampler.candidates([self._start + row for row in rows], laws, positions)
        return ids[:, :width], scores[:, :width]

    def draw(self, asks: Sequence[Ask]) -> "DeviceDraws":
        """Launch draws; rows of `asks` are counted from the first of these."""
        if self._start:
            asks = [ask._replace(first=ask.first + self._start) for ask in asks]
        draws = self._sampler.draw(asks, self._stop)
        draws.first = self._start
        return draws


class DeviceDraws:
    """Draws that the GPU makes; whoever looks waits for them."""

    def __init__(self, sampler: "Sampler", asks: Sequence[Ask], n_rows: int) -> None:
        self.first = 0
        self._sampler, self._asks, self._n = sampler, asks, n_rows
        self._tokens = list[int]()
        self._found: NDArray[Any] | None = None

    def wait(self) -> None:
        """As `Draws` says."""
        if not self._tokens:
            self._tokens, self._found = self._sampler.drawn(self._n)

    def token(self, row: int) -> int:
        """As `Draws` says."""
        self.wait()
        return self._tokens[self.first + row]

    def top(self, row: int) -> Top:
        """As `Draws` says."""
        token, row = self.token(row), self.first + row
        n = next(ask.law.n_top for ask in self._asks if ask.first <= row < ask.first + len(ask.positions)) or 0
        n = min(n, self._sampler.logits.shape[1])
        found = self._found[row]
        if n > len(found["ids"]):
            return top_of(self._sampler.row(row), token, n)
        total = float(found["largest"]) + log(found["total"]) - _UNIT
        top = zip(found["ids"][:n].tolist(), found["values"][:n].tolist(), strict=True)
        return Top(float(found["chosen"]) - total, tuple((i, value - total) for i, value in top if i >= 0))
