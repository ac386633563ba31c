"""Logits that stay on the device, and the tokens sampled from them."""

from collections.abc import Sequence
from math import log
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.arrays import GpuArray
from dflash.kernels.gpu import device
from dflash.kernels.sample.params import SampleParams, SampleRequest, Top, top_of

_UNIT = 44 * log(2)  # log of 2**44: ``RowLogprobs.total`` counts units of 2**-44

Proposed = tuple[NDArray[np.int32], NDArray[np.float32]]


class LogitsSampler(Protocol):
    """The members of `DeviceSampler` that `Logits` and `DeviceSampleResult` use."""

    logits: GpuArray
    stream: Any

    def row(self, i: int) -> NDArray[np.float32]:
        """Copy a row of logits to the host; the next call overwrites the copy."""

    def candidates(self, rows: Sequence[int], row_params: Sequence[SampleParams], positions: Sequence[int]) -> Proposed:
        """Return candidate ids and scores, each (n, POOL), of some rows."""

    def sample_rows(self, requests: Sequence[SampleRequest], n_rows: int) -> "DeviceSampleResult":
        """Launch the sampling of tokens from some of the first `n_rows` rows."""

    def sampled(self, n_rows: int) -> tuple[list[int], NDArray[Any] | None]:
        """Wait for the latest samples; return the tokens, and records of log-probabilities if any were requested."""


class Logits:
    """Rows of logits on the device, valid until the next forward.

    Its length is the number of rows. An index copies a row to the host, a slice returns a view, ``np.asarray`` copies all.
    """

    def __init__(self, sampler: "LogitsSampler", start: int, stop: int, *, vocab: int | None = None) -> None:
        self._sampler, self._start, self._stop = sampler, start, stop
        self.shape = stop - start, sampler.logits.shape[1] if vocab is None else vocab

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: int | slice) -> Any:
        if isinstance(which, slice):
            start, stop, step = which.indices(len(self))
            assert step == 1, "rows of a forward lie together"
            return Logits(self._sampler, self._start + start, self._start + max(start, stop), vocab=self.shape[1])
        return self._sampler.row(self._start + range(len(self))[which])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        with device.device_errors("logits"):
            host = self._sampler.logits[self._start : self._stop].get(stream=self._sampler.stream)
        return host if dtype is None else host.astype(dtype, copy=False)

    def candidates(
        self, rows: Sequence[int], row_params: Sequence[SampleParams], positions: Sequence[int], width: int
    ) -> Proposed:
        """Return candidate ids and scores, each (n, width), of some rows; see `dflash.kernels.sample.candidates`."""
        ids, scores = self._sampler.candidates([self._start + row for row in rows], row_params, positions)
        return ids[:, :width], scores[:, :width]

    def sample_rows(self, requests: Sequence[SampleRequest]) -> "DeviceSampleResult":
        """Launch the sampling of tokens; row numbers of `requests` count from the first of these rows."""
        if self._start:
            requests = [request._replace(first=request.first + self._start) for request in requests]
        draws = self._sampler.sample_rows(requests, self._stop)
        draws.first = self._start
        return draws


LogitRows = NDArray[np.float32] | Logits
"""Rows of logits (R, V) in host memory or on the device."""


class DeviceSampleResult:
    """Tokens that the GPU samples; reading one waits for the GPU."""

    def __init__(self, sampler: "LogitsSampler", requests: Sequence[SampleRequest], n_rows: int) -> None:
        self.first = 0
        self._sampler, self._requests, self._n = sampler, requests, n_rows
        self._tokens = list[int]()
        self._found: NDArray[Any] | None = None

    def wait(self) -> None:
        """Wait for the GPU; see `SampleResult`."""
        if not self._tokens:
            self._tokens, self._found = self._sampler.sampled(self._n)

    def token(self, row: int) -> int:
        """Return the token of a row; see `SampleResult`."""
        self.wait()
        return self._tokens[self.first + row]

    def top(self, row: int) -> Top:
        """Return the log-probabilities of a row; see `SampleResult`."""
        token, row = self.token(row), self.first + row
        n = (
            next(
                request.params.n_top
                for request in self._requests
                if request.first <= row < request.first + len(request.positions)
            )
            or 0
        )
        n = min(n, self._sampler.logits.shape[1])
        assert self._found is not None, "log-probabilities were requested"
        found = self._found[row]
        if n > len(found["ids"]):
            return top_of(self._sampler.row(row), token, n)
        total = float(found["largest"]) + log(found["total"]) - _UNIT
        top = zip(found["ids"][:n].tolist(), found["values"][:n].tolist(), strict=True)
        return Top(float(found["chosen"]) - total, tuple((i, value - total) for i, value in top if i >= 0))
