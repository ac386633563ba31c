"""The sampler: picks a token from a row of logits by the parameters of `Sampling`."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dflash.decode.drafting.draft import Draft
from dflash.decode.grammar.matcher import Words
from dflash.decode.sampling.history import History
from dflash.decode.sampling.params import Sampling
from dflash.decode.sampling.processors import Bias, LogitsProcessor, MinP, Penalties, Row, Temperature
from dflash.errors import DFlashError
from dflash.kernels import sample
from dflash.kernels.sample import NO_MASKS, NO_OFFSETS, LogitEdits, Masks, SampleParams, SampleRequest

_WORD = 2**64


class TokenLogprobs(NamedTuple):
    """Log-probabilities of a picked token and of the likeliest tokens.

    logprob: natural logarithm of its probability by the model's own logits.
    top: the likeliest tokens with their log-probabilities, the likeliest first.
    rank: place of the token among all by probability, 1 for the likeliest; known for tokens of a prompt only.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    rank: int | None = None


class Sampler:
    """Picks tokens as a function of logits, history and seed. Only `verify` calls it.

    The result is that of all processors in turn followed by ``argmax(logits + noise)``. Some sums are float32, so top-p may
    keep another token if two sums agree to 7 digits. Parameters that need no history are combined in `SampleParams`.

    draws: True if the verifier compares distributions: then drafts are sampled with noise that nothing else uses.
    """

    draws = False

    def __init__(self, sampling: Sampling, seed: int, processors: Sequence[LogitsProcessor] = ()) -> None:
        before = sampling.before
        self.processors = (*before, *processors)
        self._n_custom, self._penalties = len(processors), sampling.penalties
        self._bias = next((processor.offsets for processor in before if isinstance(processor, Bias)), NO_OFFSETS)
        self.params = _params_of(sampling, seed)
        self._scratch = np.empty(0, np.float32)

    def add(self, processor: LogitsProcessor) -> None:
        """Add a processor after the others."""
        self.processors, self._n_custom = (*self.processors, processor), self._n_custom + 1

    def remove(self, processor: LogitsProcessor) -> None:
        """Remove a processor that was added."""
        self.processors, self._n_custom = (
            tuple(each for each in self.processors if each is not processor),
            self._n_custom - 1,
        )

    def request(
        self, draft: Draft, history: History, first: int = 0, *, edits: bool = False, masks: Masks = NO_MASKS
    ) -> SampleRequest | None:
        """Return the request to sample at every node of a draft; its rows of logits begin at `first`.

        None if processors need each node. Penalties and bias do, too, unless `edits` allows them in the request.
        """
        if self.processors and (self._n_custom or not edits):
            return None
        n = len(history)
        return SampleRequest(
            self.params, first, draft.positions(n), self._edits(draft, history) if self.processors else None, masks
        )

    def sample(self, row: Row, history: History, mask: Words | None = None) -> int:
        """Pick the token that follows a history, or -1 if every token is masked or NaN.

        The mask of a grammar comes first, so that processors see which tokens are legal: `MinTokens` leaves end tokens where
        only these are.
        """
        if self.processors or mask is not None:
            row = self._processed(row, history, mask)
        return sample.sample_one(row, self.params, len(history))

    def distribution(self, row: Row, history: History, mask: Words | None = None) -> NDArray[np.float64]:
        """Return the probabilities (V,) with which `sample` picks a token; all 0 if there is none."""
        if self.processors or mask is not None:
            row = self._processed(row, history, mask)
        return sample.distribution(row, self.params)

    def sample_from(self, weights: NDArray[np.float64], position: int) -> int:
        """Pick the token at a position from weights (V,) that do not add up to 1, with the noise of `sample`."""
        with np.errstate(divide="ignore"):
            row = np.log(weights).astype(np.float32)
        return sample.sample_one(row, SampleParams(scale=1.0, seed=self.params.seed), position)

    def draft_params(self, length: int) -> SampleParams:
        """Return the parameters with which the draft after `length` tokens of the sequence is sampled.

        The noise is that of `sample`, which makes equal tokens likely, unless the session `draws`.
        """
        if not self.draws:
            return self.params
        mixed = np.random.SeedSequence((self.params.seed % _WORD, length)).generate_state(1, np.uint64)
        return self.params._replace(seed=int(mixed[0]))

    def logprobs(self, row: Row, token: int) -> TokenLogprobs | None:
        """Return the log-probabilities of a row before processors; None if the request does not want them."""
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

    def _processed(self, row: Row, history: History, mask: Words | None) -> Row:
        shape = row.shape
        if self._scratch.shape != shape:
            self._scratch = np.empty(shape, np.float32)
        if mask is None:
            np.copyto(self._scratch, row)
        else:
            sample.mask_row(row, mask, out=self._scratch)
        row = self._scratch
        for processor in self.processors:
            row = processor(row, history)
            if getattr(row, "shape", None) != shape:
                raise DFlashError(f"{processor!r} must return float32 {shape}, got {row if row is None else np.shape(row)}")
        return np.ascontiguousarray(row, np.float32)


def _params_of(sampling: Sampling, seed: int) -> SampleParams:
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
