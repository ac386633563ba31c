"""Picks a token from a row of logits: the rules of `Sampling`, folded into a `Law` where they need no history."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dflash.decode.drafting.draft import Draft
from dflash.decode.sampling.history import History
from dflash.decode.sampling.params import Sampling
from dflash.decode.sampling.processors import Bias, MinP, Penalties, Row, Rule, Temperature
from dflash.errors import DFlashError
from dflash.kernels import sample
from dflash.kernels.sample import NO_OFFSETS, Ask, Edits, Law


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
    rules : tuple of Rule
        What sees the history at each node.
    law : Law
        What comes after them.
    """

    def __init__(self, sampling: Sampling, seed: int, processors: Sequence[Rule] = ()) -> None:
        before = sampling.before
        self.rules = (*before, *processors)
        self._processors, self._penalties = len(processors), sampling.penalties
        self._bias = next((rule.offsets for rule in before if isinstance(rule, Bias)), NO_OFFSETS)
        self.law = _law(sampling, seed)
        self._scratch = np.empty(0, np.float32)

    def add(self, rule: Rule) -> None:
        """Call one more rule, after the others."""
        self.rules, self._processors = (*self.rules, rule), self._processors + 1

    def remove(self, rule: Rule) -> None:
        """Call a rule that was added no longer."""
        self.rules, self._processors = tuple(each for each in self.rules if each is not rule), self._processors - 1

    def ask(self, draft: Draft, history: History, first: int = 0, *, edits: bool = False) -> Ask | None:
        """Say what to draw at every node of a draft under a text, whose rows of logits begin at `first`.

        None where rules must see each node: processors, and penalties and bias unless these may be told as `edits`.
        """
        if self.rules and (self._processors or not edits):
            return None
        n = len(history)
        return Ask(self.law, first, draft.positions(n), self._edits(draft, history) if self.rules else None)

    def pick(self, row: Row, history: History) -> int:
        """Pick the token that follows a history, or -1 if every token is masked or NaN."""
        if self.rules:
            row = self._ruled(row, history)
        return sample.draw_one(row, self.law, len(history))

    def logprobs(self, row: Row, token: int) -> TokenLogprobs | None:
        """Tell how likely `token` was by an unruled row, if the caller wanted to know."""
        return None if self.law.n_top is None else TokenLogprobs(token, *sample.top_of(row, token, self.law.n_top))

    def _edits(self, draft: Draft, history: History) -> Edits:
        p, counts = self._penalties or Penalties(), history.counts
        if self._penalties is None or counts is None:
            nothing = np.empty(0, np.int64), np.empty(0, np.float32)
            return Edits(*nothing, [{}] * (1 + len(draft)), bias=self._bias)
        own: list[dict[int, float]] = [{}]
        for token, parent in zip(draft.tokens.tolist(), draft.parents.tolist(), strict=True):
            above = own[parent + 1]
            own.append(above | {token: above.get(token, counts.of(token)) + 1})
        return Edits(counts.ids, counts.produced, own, p.repetition, p.presence, p.frequency, self._bias)

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


def _law(sampling: Sampling, seed: int) -> Law:
    if sampling.greedy:
        return Law(n_top=sampling.logprobs)
    return Law(
        scale=float(Temperature(sampling.temperature).scale),
        top_k=max(sampling.top_k, 0),
        top_p=float(sampling.top_p),
        floor=float(MinP(sampling.min_p).floor) if sampling.min_p > 0 else -np.inf,
        seed=seed,
        n_top=sampling.logprobs,
    )
