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

_NEAR = -8.0
_DEEPEST = -1000.0


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
        self._floor = float(MinP(sampling.min_p).floor) if sampling.min_p > 0 else -np.inf
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
        if 0 < self._top_k < len(row) or self._top_p < 1:
            return sample.sample_among(*self._kept(row), self._seed, len(history), self._floor)
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
        """What top-k and top-p leave, in any order: ids and scaled logits, the largest of them 0."""
        if 0 < self._top_k < len(row):
            ids, values = np.empty(self._top_k, np.int32), np.empty(self._top_k, np.float32)
            sample.top_k(row, ids=ids, values=values)
            n = len(ids) if ids[-1] >= 0 else int(np.count_nonzero(ids >= 0))
            scaled = np.maximum(values[:n] - values[:1], _DEEPEST / self._scale) * self._scale
            ids, total = ids[:n], 0.0
        else:
            ids, scaled, total = self._likeliest(row)
        n = sample.nucleus(ids, scaled, self._top_p, total) if self._top_p < 1 else len(ids)
        return ids[:n], scaled[:n]

    def _likeliest(self, row: Row) -> tuple[Ids, Row, float]:
        """All that top-p may leave of a row, and the weight of the whole row."""
        # what is below the second floor has a share below 1 - P in all; often the first holds the share P, too
        ids, scaled, total = self._above(row, _NEAR)
        if np.exp(scaled, dtype=np.float64).sum() < self._top_p * total:
            ids, scaled, total = self._above(row, np.log(max(1 - self._top_p, 1e-16) / len(row)))
        return ids, scaled, total

    def _above(self, row: Row, floor: float) -> tuple[Ids, Row, float]:
        ids, scaled = np.empty(len(row), np.int32), np.empty(len(row), np.float32)
        n, total = sample.likely(row, self._scale, floor, ids=ids, scaled=scaled)
        return ids[:n], scaled[:n], total
