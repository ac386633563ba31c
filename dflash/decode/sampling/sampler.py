"""Picks a token from a row of logits: the rules of `Sampling`, folded into a `SampleParams` where they need no history."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dflash.decode.drafting.draft import Draft
from dflash.decode.sampling.history import History
from dflash.decode.sampling.params import Sampling
from dflash.decode.sampling.processors import Bias, LogitsProcessor, MinP, Penalties, Row, Temperature
from dflash.errors import DFlashError
from dflash.kernels import sample
from dflash.kernels.sample import NO_OFFSETS, LogitEdits, SampleParams, SampleRequest


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


class Sampler:
    """The same token for the same logits, history and seed, whoever asks. `verify` alone calls it.

    It does what calling each rule in turn and taking ``argmax(logits + noise)`` would do (sums are float32 in part, so the
    border of top-p may fall differently where two sums agree to 7 digits).

    Parameters
    ----------
    sampling : Sampling
        What the caller wants.
    seed : int
        Key of the noise.
    processors : sequence of LogitsProcessor
        Called in order, after penalties and bias.

    Attributes
    ----------
    processors : tuple of LogitsProcessor
        What sees the history at each node.
    params : SampleParams
        What comes after them.
    """

    def __init__(self, sampling: Sampling, seed: int, processors: Sequence[LogitsProcessor] = ()) -> None:
        before = sampling.before
        self.processors = (*before, *processors)
        self._n_custom, self._penalties = len(processors), sampling.penalties
        self._bias = next((processor.offsets for processor in before if isinstance(processor, Bias)), NO_OFFSETS)
        self.params = _law(sampling, seed)
        self._scratch = np.empty(0, np.float32)

    def add(self, processor: LogitsProcessor) -> None:
        """Call one more rule, after the others."""
        self.processors, self._n_custom = (*self.processors, processor), self._n_custom + 1

    def remove(self, processor: LogitsProcessor) -> None:
        """Call a rule that was added no longer."""
        self.processors, self._n_custom = (
            tuple(each for each in self.processors if each is not processor),
            self._n_custom - 1,
        )

    def request(self, draft: Draft, history: History, first: int = 0, *, edits: bool = False) -> SampleRequest | None:
        """Say what to draw at every node of a draft under a text, whose rows of logits begin at `first`.

        None where rules must see each node: processors, and penalties and bias unless these may be told as `edits`.
        """
        if self.processors and (self._n_custom or not edits):
            return None
        n = len(history)
        return SampleRequest(
            self.params, first, draft.positions(n), self._edits(draft, history) if self.processors else None
        )

    def sample(self, row: Row, history: History) -> int:
        """Pick the token that follows a history, or -1 if every token is masked or NaN."""
        if self.processors:
            row = self._processed(row, history)
        return sample.sample_one(row, self.params, len(history))

    def logprobs(self, row: Row, token: int) -> TokenLogprobs | None:
        """Tell how likely `token` was by an unruled row, if the caller wanted to know."""
        return None if self.params.n_top is None else TokenLogprobs(token, *sample.top_of(row, token, self.params.n_top))

    def _edits(self, draft: Draft, history: History) -> LogitEdits:
        p, counts = self._penalties or Penalties(), history.counts
        if self._penalties is None or counts is None:
            nothing = np.empty(0, np.int64), np.empty(0, np.float32)
            return LogitEdits(*nothing, [{}] * (1 + len(draft)), bias=self._bias)
        own: list[dict[int, float]] = [{}]
        for token, parent in zip(draft.tokens.tolist(), draft.parents.tolist(), strict=True):
            above = own[parent + 1]
            own.append(above | {token: above.get(token, counts.of(token)) + 1})
        return LogitEdits(counts.ids, counts.produced, own, p.repetition, p.presence, p.frequency, self._bias)

    def _processed(self, row: Row, history: History) -> Row:
        shape = row.shape
        if self._scratch.shape != shape:
            self._scratch = np.empty(shape, np.float32)
        np.copyto(self._scratch, row)
        row = self._scratch
        for processor in self.processors:
            row = processor(row, history)
            if getattr(row, "shape", None) != shape:
                raise DFlashError(f"{processor!r} must return float32 {shape}, got {row if row is None else np.shape(row)}")
        return np.ascontiguousarray(row, np.float32)


def _law(sampling: Sampling, seed: int) -> SampleParams:
    if sampling.greedy:
        return SampleParams(n_top=sampling.logprobs)
    return SampleParams(
        scale=float(Temperature(sampling.temperature).scale),
        top_k=max(sampling.top_k, 0),
        top_p=float(sampling.top_p),
        floor=float(MinP(sampling.min_p).floor) if sampling.min_p > 0 else -np.inf,
        seed=seed,
        n_top=sampling.logprobs,
    )
