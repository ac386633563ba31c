"""Sampling parameters, requests and results, and sampling on the CPU."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.sample import cpu
from dflash.kernels.sample.mask import mask_row
from dflash.kernels.sample.top_k import top_k
from dflash.kernels.sample.top_p import nucleus

Row = NDArray[np.float32]
Ids = NDArray[np.int32]

_NEAR = -8.0  # first floor of scaled logits for top-p; tokens above it often hold the share already
_DEEPEST = -1000.0  # lower bound of scaled logits, which keeps them finite; its exponential is 0


class SampleParams(NamedTuple):
    """Parameters for sampling a token from a row of logits.

    scale: inverse temperature, a float32 above 0. None means greedy: the largest logit, the lowest id among equals.
    top_k: number of most probable tokens to keep, lower ids first among equals; 0 keeps all.
    top_p: share of probability: of the remaining tokens keep the fewest most probable ones that reach it; 1 keeps all.
    floor: lowest scaled logit, relative to the largest, of the tokens to keep (min-p).
    seed: key of the noise; only its lowest 64 bits count.
    n_top: number of most probable tokens to return with log-probabilities. None returns no log-probabilities at all.
    """

    scale: float | None = None
    top_k: int = 0
    top_p: float = 1.0
    floor: float = -np.inf
    seed: int = 0
    n_top: int | None = None


class Offsets(NamedTuple):
    """Numbers to add to the logits of some tokens.

    ids: int64 (N,); token ids.
    values: float32 (N,); value to add to the logit of each token.
    """

    ids: NDArray[np.int64]
    values: Row

    @classmethod
    def of(cls, pairs: Sequence[tuple[int, float]]) -> "Offsets":
        """Return the offsets of pairs of a token id and a value."""
        n = len(pairs)
        ids = np.fromiter((token for token, _ in pairs), np.int64, n)
        return cls(ids, np.fromiter((value for _, value in pairs), np.float32, n))

    def add_to(self, row: Row) -> None:
        """Add the offsets to a row (V,) in place; an id that occurs twice is added twice, in order."""
        np.add.at(row, self.ids, self.values)


NO_OFFSETS = Offsets.of(())
"""Offsets of no tokens."""


class LogitEdits(NamedTuple):
    """Penalties and bias of some rows.

    ids: distinct tokens of the sequence.
    produced: float32 (N,); number of times that each token was generated; 0 for a token that occurs only in the prompt.
    drafts: for each row, the count of generated occurrences of the tokens that the row's own draft path adds to the
        sequence.
    repetition, presence, frequency: penalties. The logit of a token of the sequence is divided by `repetition` if above 0,
        else multiplied. Then `presence` is subtracted if the token was generated, and `frequency` times its count.
    bias: added last; each token occurs once.
    """

    ids: NDArray[np.integer]
    produced: Row
    drafts: Sequence[dict[int, float]]
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    bias: Offsets = NO_OFFSETS


Masks = Mapping[int, NDArray[np.uint32]]
"""Bit-packed sets of allowed tokens by row, as for `mask_row`. All tokens of other rows are allowed."""

NO_MASKS: Masks = MappingProxyType({})
"""Masks that allow everything."""


class SampleRequest(NamedTuple):
    """A request for tokens from consecutive rows.

    positions: position of the sampled token of each row in its sequence; selects the noise. May be a `LazyArray`.
    edits: edits of the logits before sampling.
    masks: masks by row of the request, its first row being 0; applied with the edits.
    """

    params: SampleParams
    first: int
    positions: Sequence[int] | NDArray[np.integer]
    edits: LogitEdits | None = None
    masks: Masks = NO_MASKS


class Top(NamedTuple):
    """Log-probabilities (natural): of the sampled token, and of the most probable tokens in descending order."""

    logprob: float
    top: tuple[tuple[int, float], ...]


class SampleResult(Protocol):
    """Sampled tokens of some rows; read them before the next forward, which overwrites the logits."""

    def wait(self) -> None:
        """Wait until all tokens are sampled; errors of the device are raised here."""

    def token(self, row: int) -> int:
        """Return the token of a requested row, or -1 if no logit is above minus infinity."""

    def top(self, row: int) -> Top:
        """Return log-probabilities of a row without edits and mask; call it only if `SampleParams.n_top` requests them."""


class HostSampleResult:
    """Tokens sampled on the CPU when they are read; verifying a draft reads only few of its rows.

    logits: float32 (R, V)
    requests: no row is in two of them.
    """

    def __init__(self, logits: NDArray[np.float32], requests: Sequence[SampleRequest]) -> None:
        self._logits = logits
        self._asked = {request.first + i: (request, i) for request in requests for i in range(len(request.positions))}
        self._tokens: dict[int, int] = {}

    def wait(self) -> None:
        """Return immediately; tokens are sampled when they are read."""

    def token(self, row: int) -> int:
        """Sample the token of a row; see `SampleResult`."""
        if row not in self._tokens:
            request, i = self._asked[row]
            logits = self._logits[row]
            if i in request.masks:
                logits = np.empty_like(logits)
                mask_row(self._logits[row], request.masks[i], out=logits)
            if request.edits is not None:
                logits = edited(logits, request.edits, i)
            self._tokens[row] = sample_one(logits, request.params, int(request.positions[i]))
        return self._tokens[row]

    def top(self, row: int) -> Top:
        """Return the log-probabilities of a row; see `SampleResult`."""
        return top_of(self._logits[row], self.token(row), self._asked[row][0].params.n_top or 0)


def sample_one(row: Row, params: SampleParams, position: int) -> int:
    """Sample a token from a contiguous row (V,) of logits; -1 if no logit is above minus infinity."""
    if params.scale is None:
        return int(cpu.argmax_row(row))
    seed = signed(params.seed)
    if 0 < params.top_k < len(row) or params.top_p < 1:
        return int(cpu.sample_among(*_kept(row, params), seed, position, float(params.floor)))
    return int(cpu.sample(row, params.scale, seed, position, float(params.floor)))


def distribution(row: Row, params: SampleParams) -> NDArray[np.float64]:
    """Return the probabilities (V,) with which `sample_one` samples from a row; all 0 if every logit is masked."""
    found = np.zeros(len(row))
    if np.isnan(row).any():
        row = np.where(np.isnan(row), np.float32(-np.inf), row)
    highest = row.max()
    if highest == -np.inf:
        return found
    if params.scale is None:
        found[np.argmax(row)] = 1
        return found
    if 0 < params.top_k < len(row) or params.top_p < 1:
        ids, scaled = _kept(row, params)
    else:
        ids, scaled = np.arange(len(row), dtype=np.int32), (row - highest) * np.float32(params.scale)
    weights = np.where(scaled >= np.float32(params.floor), np.exp(scaled.astype(np.float64)), 0)
    found[ids] = weights / weights.sum()
    return found


def edited(row: Row, edits: LogitEdits, i: int) -> Row:
    """Return a copy of a row (V,) with edits applied; it is row `i` of the request."""
    produced = dict(zip(edits.ids.tolist(), edits.produced.tolist(), strict=True)) | edits.drafts[i]
    ids, counts = np.array(list(produced), np.int64), np.array(list(produced.values()), np.float32)
    row = row.copy()
    values = row[ids]
    factor = np.float32(edits.repetition)
    values = np.where(values > 0, values / factor, values * factor)
    values -= np.float32(edits.frequency) * counts
    row[ids] = values - np.float32(edits.presence) * (counts > 0)
    edits.bias.add_to(row)
    return row


def top_of(row: Row, token: int, n: int) -> Top:
    """Return log-probabilities by a row (V,): of `token`, and of the `n` most probable tokens above minus infinity."""
    total = cpu.log_sum_exp(row, 1.0)
    n = min(n, len(row))
    ids, values = np.empty(n, np.int32), np.empty(n, np.float32)
    if n:
        top_k(row, ids, values)
    top = tuple((i, value - total) for i, value in zip(ids.tolist(), values.tolist(), strict=True) if i >= 0)
    return Top(float(row[token]) - total, top)


def signed(seed: int) -> int:
    """Return the lowest 64 bits of a seed as a signed integer, for numba."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)


def _kept(row: Row, params: SampleParams) -> tuple[Ids, Row]:
    """Return the tokens that pass top-k and top-p, in any order: ids and scaled logits, the largest of them 0."""
    if 0 < params.top_k < len(row):
        ids, values = np.empty(params.top_k, np.int32), np.empty(params.top_k, np.float32)
        top_k(row, ids, values)
        n = len(ids) if ids[-1] >= 0 else int(np.count_nonzero(ids >= 0))
        assert params.scale is not None, "a greedy request keeps one token"
        scaled = np.maximum(values[:n] - values[:1], _DEEPEST / params.scale) * params.scale
        ids, total = ids[:n], 0.0
    else:
        ids, scaled, total = _likeliest(row, params)
    n = nucleus(ids, scaled, float(params.top_p), total) if params.top_p < 1 else len(ids)
    return ids[:n], scaled[:n]


def _likeliest(row: Row, params: SampleParams) -> tuple[Ids, Row, float]:
    """Return a superset of the tokens that pass top-p, and the weight of the whole row."""
    # all tokens below the second floor have a share below 1 - P together; often the first floor suffices
    ids, scaled, total = _above(row, params, _NEAR)
    if np.exp(scaled, dtype=np.float64).sum() < params.top_p * total:
        ids, scaled, total = _above(row, params, np.log(max(1 - params.top_p, 1e-16) / len(row)))
    return ids, scaled, total


def _above(row: Row, params: SampleParams, floor: Any) -> tuple[Ids, Row, float]:
    ids, scaled = np.empty(len(row), np.int32), np.empty(len(row), np.float32)
    n, total = cpu.likely(row, params.scale, float(floor), ids, scaled)
    return ids[:n], scaled[:n], total
