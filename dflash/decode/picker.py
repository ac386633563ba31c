"""Picks a token from a row of logits: the rules of `Sampling`, folded into few passes over the row."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dflash.decode.history import History
from dflash.decode.rules import MinP, Row, Rule, Temperature
from dflash.decode.sampling import Sampling
from dflash.errors import DFlashError
from dflash.kernels import sample

Ids = NDArray[np.int32]

_ALL = np.float32(-np.inf)
_NEAR = -8.0
_BINS = 4096


class TokenLogprobs(NamedTuple):
    """How likely the model found a token, and what it found likeliest.

    Parameters
    ----------
    token : int
        The token that was picked.
    logprob : float
        Natural logarithm of its probability by the model's own logits.
    top : tuple of (int, float)
        The likeliest tokens and theirs, likeliest first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class Picker:
    """The same token for the same logits, history and seed, whoever asks. `verify` alone calls it.

    It does what calling each rule in turn and taking ``argmax(logits + noise)`` would do (sums are float32 in part, so the
    border of top-p may fall differently where two sums agree to 7 digits).

    Parameters
    ----------
    sampling : Sampling
        What the caller wants.
    seed : int
        Key of the noise.
    processors : sequence of Rule
        Called in order, after penalties and bias.

    Attributes
    ----------
    batched : bool
        Whether the largest logit of each row is all that is asked for; then `pick_all` may be called.
    """

    def __init__(self, sampling: Sampling, seed: int, processors: Sequence[Rule] = ()) -> None:
        self.rules = (*sampling.before, *processors)
        self.batched = sampling.greedy and not self.rules
        self._seed = seed
        self._scale = None if sampling.greedy else float(Temperature(sampling.temperature).scale)
        self._top_k, self._top_p = max(sampling.top_k, 0), sampling.top_p
        self._floor = MinP(sampling.min_p).floor if sampling.min_p > 0 else _ALL
        self._n_logprobs = sampling.logprobs
        self._scratch = np.empty(0, np.float32)

    def pick_all(self, logits: NDArray[np.float32]) -> list[int]:
        """Pick a token for each row (R, V), or -1 where there is none, without rules and noise."""
        out = np.empty(len(logits), np.int32)
        sample.argmax(logits, out=out)
        return out.tolist()

    def pick(self, row: Row, history: History) -> int:
        """Pick the token that follows a history, or -1 if every token is masked or NaN."""
        if self.rules:
            row = self._ruled(row, history)
        if self._scale is None:
            return self.pick_all(row[None])[0]
        if self._top_k or self._top_p < 1:
            return sample.sample_among(*self._kept(row), self._seed, len(history))
        return sample.sample(row, self._scale, self._seed, len(history), self._floor)

    def logprobs(self, row: Row, token: int) -> TokenLogprobs | None:
        """Tell how likely `token` was by an unruled row, if the caller wanted to know."""
        if self._n_logprobs is None:
            return None
        total = sample.log_sum_exp(row)
        n = min(self._n_logprobs, len(row))
        ids, values = np.empty(n, np.int32), np.empty(n, np.float32)
        if n:
            sample.top_k(row, ids=ids, values=values)
        top = tuple((i, value - total) for i, value in zip(ids.tolist(), values.tolist(), strict=True) if i >= 0)
        return TokenLogprobs(token, float(row[token]) - total, top)

    def _ruled(self, row: Row, history: History) -> Row:
        shape = row.shape
        if self._scratch.shape != shape:
            self._scratch = np.empty(shape, np.float32)
        np.copyto(self._scratch, row)
        row = self._scratch
        for rule in self.rules:
            row = rule(row, history)
            if getattr(row, "shape", None) != shape:
                raise DFlashError(f"{rule!r} must return float32 {shape}, got {row if row is None else np.shape(row)}")
        return np.ascontiguousarray(row, np.float32)

    def _kept(self, row: Row) -> tuple[Ids, Row]:
        """What top-k, top-p and min-p leave, in any order: ids and scaled logits, the largest of them 0."""
        if 0 < self._top_k < len(row):
            ids, values = np.empty(self._top_k, np.int32), np.empty(self._top_k, np.float32)
            sample.top_k(row, ids=ids, values=values)
            ids, values = ids[ids >= 0], values[ids >= 0]
            scaled = (values - values[:1]) * np.float32(self._scale)
            if self._top_p < 1 and len(ids):
                ids, scaled = nucleus(ids, scaled, self._top_p * float(np.exp(scaled, dtype=np.float64).sum()))
        elif self._top_p < 1:
            ids, scaled = self._likeliest(row)
        else:
            ids, scaled, _ = self._above(row, _ALL)
        left = scaled >= self._floor
        return ids[left], scaled[left]

    def _likeliest(self, row: Row) -> tuple[Ids, Row]:
        """What top-p leaves of a whole row."""
        # what is below the last floor has a share below 1 - P in all, so the nucleus is above it; often the first will do
        for floor in (_NEAR, np.log(max(1 - self._top_p, 1e-16) / len(row))):
            ids, scaled, total = self._above(row, floor)
            if np.exp(scaled, dtype=np.float64).sum() >= self._top_p * total:
                break
        return nucleus(ids, scaled, self._top_p * total) if len(ids) else (ids, scaled)

    def _above(self, row: Row, floor: float) -> tuple[Ids, Row, float]:
        ids = np.empty(len(row), np.int32)
        n, highest, total = sample.likely(row, self._scale, floor, ids=ids)
        return ids[:n], (row[ids[:n]] - np.float32(highest)) * np.float32(self._scale), total


def nucleus(ids: Ids, scaled: Row, wanted: float) -> tuple[Ids, Row]:
    """Take the likeliest tokens until their weights ``exp(scaled)`` reach `wanted`, lower ids first among equals.

    Parameters
    ----------
    ids : int32 (N,)
        At least one.
    scaled : float32 (N,)
        Their logits, at most 0.
    wanted : float
        If all weights together are less, all are taken.

    Returns
    -------
    ids : int32 (n,)
        In any order; the token that reaches `wanted` is the last one taken.
    scaled : float32 (n,)
    """
    # bins of equal width: all of those above the one where the sum crosses are in, only that one is sorted
    width = max(float(-scaled.min()) / min(_BINS, len(ids)), 1e-6)
    bins = (scaled / np.float32(-width)).astype(np.int32)
    weights = np.exp(scaled, dtype=np.float64)
    mass = np.cumsum(np.bincount(bins, weights))
    last = int(np.searchsorted(mass, wanted))
    inside = np.flatnonzero(bins == last)
    inside = inside[np.lexsort((ids[inside], -scaled[inside]))]
    below = mass[last - 1] if last else 0.0
    n = int(np.searchsorted(below + np.cumsum(weights[inside]), wanted)) + 1
    taken = np.concatenate([np.flatnonzero(bins < last), inside[:n]])
    return ids[taken], scaled[taken]
