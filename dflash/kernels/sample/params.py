"""How a token is drawn from a row of logits, in one piece: `SampleParams`, and draws by it on the CPU."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.sample import cpu
from dflash.kernels.sample.top_k import top_k
from dflash.kernels.sample.top_p import nucleus

Row = NDArray[np.float32]
Ids = NDArray[np.int32]

_NEAR = -8.0
_DEEPEST = -1000.0


class SampleParams(NamedTuple):
    """What is kept of a row, and how one of it is drawn.

    Parameters
    ----------
    scale : float or None
        Inverse temperature, a float32 above 0; None takes the largest logit, of equals the lowest id.
    top_k : int
        Keep so many of the likeliest tokens, lower ids first among equals; 0 keeps all.
    top_p : float
        Of these keep the likeliest that together have this share; 1 keeps all.
    floor : float
        Of these keep those whose scaled logit, the largest made 0, is not below it.
    seed : int
        Key of the noise; its lowest 64 bits count.
    n_top : int or None
        How many of the likeliest tokens are told with log-probabilities; None tells nothing.
    """

    scale: float | None = None
    top_k: int = 0
    top_p: float = 1.0
    floor: float = -np.inf
    seed: int = 0
    n_top: int | None = None


class Offsets(NamedTuple):
    """Numbers to add to the logits of some tokens.

    Parameters
    ----------
    ids : int64 (N,)
        Token ids.
    values : float32 (N,)
        What is added to the logit of each.
    """

    ids: NDArray[np.int64]
    values: Row

    @classmethod
    def of(cls, pairs: Sequence[tuple[int, float]]) -> "Offsets":
        """Convert pairs of a token id and a number."""
        n = len(pairs)
        ids = np.fromiter((token for token, _ in pairs), np.int64, n)
        return cls(ids, np.fromiter((value for _, value in pairs), np.float32, n))

    def add_to(self, row: Row) -> None:
        """Add to a row (V,) in place, one pair after another where an id occurs twice."""
        np.add.at(row, self.ids, self.values)


NO_OFFSETS = Offsets.of(())
"""Nothing to add."""


class LogitEdits(NamedTuple):
    """Penalties and bias of some rows.

    Parameters
    ----------
    ids : int (N,)
        Tokens of the text, each once.
    produced : float32 (N,)
        How often each was produced; a token of the prompt alone never was.
    drafts : sequence of dict
        For each row, how often the tokens were produced that its own draft adds to the text.
    repetition, presence, frequency : float
        A logit above 0 of a token of the text is divided by the first, another multiplied; then `presence` is taken off if
        the token was produced, and `frequency` as often as it was.
    bias : Offsets
        Added at last; each token occurs once.
    """

    ids: NDArray[np.integer]
    produced: Row
    drafts: Sequence[dict[int, float]]
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    bias: Offsets = NO_OFFSETS


class SampleRequest(NamedTuple):
    """Draws that are wanted of some rows in turn.

    Parameters
    ----------
    params : SampleParams
        The same for all of them.
    first : int
        The first row.
    positions : sequence of int
        A position of the text for each row, which the noise depends on; may be known `LazyArray`.
    edits : LogitEdits, optional
        What is done to the rows before.
    """

    params: SampleParams
    first: int
    positions: Sequence[int] | Ids
    edits: LogitEdits | None = None


class Top(NamedTuple):
    """Natural logarithms of probabilities: of one token, and the likeliest tokens with theirs, likeliest first."""

    logprob: float
    top: tuple[tuple[int, float], ...]


class SampleResult(Protocol):
    """What was drawn; to be looked at before the next forward."""

    def wait(self) -> None:
        """Until a device has drawn; what fails there is raised here."""
        ...

    def token(self, row: int) -> int:
        """The token drawn from a row that was asked for, or -1 if there is nothing above minus infinity."""
        ...

    def top(self, row: int) -> Top:
        """Log-probabilities of that token and of the likeliest, by the row as it is, if the law asks for them."""
        ...


class HostSampleResult:
    """Draws on the CPU, one by one as they are looked at: of a draft, few rows are.

    Parameters
    ----------
    logits : float32 (R, V)
    requests : sequence of SampleRequest
        Of different rows.
    """

    def __init__(self, logits: NDArray[np.float32], requests: Sequence[SampleRequest]) -> None:
        self._logits = logits
        self._asked = {request.first + i: (request, i) for request in requests for i in range(len(request.positions))}
        self._tokens: dict[int, int] = {}

    def wait(self) -> None:
        """There is nothing to wait for."""

    def token(self, row: int) -> int:
        """As `SampleResult` says."""
        if row not in self._tokens:
            request, i = self._asked[row]
            logits = self._logits[row] if request.edits is None else edited(self._logits[row], request.edits, i)
            self._tokens[row] = sample_one(logits, request.params, int(request.positions[i]))
        return self._tokens[row]

    def top(self, row: int) -> Top:
        """As `SampleResult` says."""
        return top_of(self._logits[row], self.token(row), self._asked[row][0].params.n_top or 0)


def sample_one(row: Row, params: SampleParams, position: int) -> int:
    """Draw a token from a row (V,), which need not be contiguous with others; -1 if there is none."""
    if params.scale is None:
        return int(cpu.argmax_row(row))
    seed = signed(params.seed)
    if 0 < params.top_k < len(row) or params.top_p < 1:
        return int(cpu.sample_among(*_kept(row, params), seed, position, float(params.floor)))
    return int(cpu.sample(row, params.scale, seed, position, float(params.floor)))


def edited(row: Row, edits: LogitEdits, i: int) -> Row:
    """A copy of a row (V,), the i-th of those that `edits` are for, with these made."""
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
    """Log-probabilities by a row (V,): of `token`, and of the `n` likeliest tokens above minus infinity."""
    total = cpu.log_sum_exp(row, 1.0)
    n = min(n, len(row))
    ids, values = np.empty(n, np.int32), np.empty(n, np.float32)
    if n:
        top_k(row, ids, values)
    top = tuple((i, value - total) for i, value in zip(ids.tolist(), values.tolist(), strict=True) if i >= 0)
    return Top(float(row[token]) - total, top)


def signed(seed: int) -> int:
    """The lowest 64 bits as a kernel takes them."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)


def _kept(row: Row, params: SampleParams) -> tuple[Ids, Row]:
    """What top-k and top-p leave, in any order: ids and scaled logits, the largest of them 0."""
    if 0 < params.top_k < len(row):
        ids, values = np.empty(params.top_k, np.int32), np.empty(params.top_k, np.float32)
        top_k(row, ids, values)
        n = len(ids) if ids[-1] >= 0 else int(np.count_nonzero(ids >= 0))
        scaled = np.maximum(values[:n] - values[:1], _DEEPEST / params.scale) * params.scale
        ids, total = ids[:n], 0.0
    else:
        ids, scaled, total = _likeliest(row, params)
    n = nucleus(ids, scaled, float(params.top_p), total) if params.top_p < 1 else len(ids)
    return ids[:n], scaled[:n]


def _likeliest(row: Row, params: SampleParams) -> tuple[Ids, Row, float]:
    """All that top-p may leave of a row, and the weight of the whole row."""
    # what is below the second floor has a share below 1 - P in all; often the first holds the share P, too
    ids, scaled, total = _above(row, params, _NEAR)
    if np.exp(scaled, dtype=np.float64).sum() < params.top_p * total:
        ids, scaled, total = _above(row, params, np.log(max(1 - params.top_p, 1e-16) / len(row)))
    return ids, scaled, total


def _above(row: Row, params: SampleParams, floor: Any) -> tuple[Ids, Row, float]:
    ids, scaled = np.empty(len(row), np.int32), np.empty(len(row), np.float32)
    n, total = cpu.likely(row, params.scale, float(floor), ids, scaled)
    return ids[:n], scaled[:n], total
