"""Inputs and outputs of a forward."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Protocol, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dflash.errors import KernelError, RequestError
from dflash.kernels.delta.state_copies import StateCopy
from dflash.kernels.gpu.lazy_array import LazyArray
from dflash.kernels.ragged import PAGE, PENDING, Ragged
from dflash.kernels.sample.cuda_logits import LogitRows
from dflash.model.config import Config
from dflash.model.protocols.device_drafter import DeviceDrafts
from dflash.model.protocols.sequence import Parents, SequenceState
from dflash.model.state.sequence_state import State

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]


class DraftTree(Protocol):
    """Draft tokens (n,) and their parents (n,); parent -1 is the last token of the text."""

    def __len__(self) -> int:
        """Return the number of draft tokens, known at once. Read when a forward is planned."""

    @property
    def tokens(self) -> Ints:
        """Draft tokens. Read when a forward is planned; or, if a device still computes them, waits for its pass."""

    @property
    def parents(self) -> Ints:
        """Parents of the draft tokens. Read with `tokens`, and when the rows are committed."""

    @property
    def drafts(self) -> DeviceDrafts | None:
        """All drafts of the pass of a device that computes this one; None if it is, or was, on the host."""

    @property
    def index(self) -> int:
        """Index of this draft among those of the pass; never changes."""


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """Tokens of one sequence to read in a forward.

    state: state of the sequence, made by the model that reads the span.
    tokens: int32 (n,); at least one token. In a decode step the first is the last token of the text, the others are draft
        tokens.
    parents: int32 (n,); index of each token's parent in the span, smaller than its own; -1 follows the committed text.
    prefill: whether this is a prefill span: a chain of tokens that the forward commits at once.
    device_draft: draft tokens and parents that a device still computes; `tokens` and `parents` then hold placeholders after
        the first.
    copies: copies of the recurrent state that a prefill makes inside of the span; see `SequenceState.copy_after`.
    """

    state: SequenceState
    tokens: Ints
    parents: Ints
    prefill: bool = False
    logits: bool = True
    device_draft: DraftTree | None = None
    copies: tuple[StateCopy, ...] = ()

    @classmethod
    def chain(cls, state: SequenceState, tokens: ArrayLike, *, prefill: bool = False, logits: bool = True) -> "Span":
        """Return a span of tokens (n,) that follow each other."""
        ids = np.asarray(tokens, np.int32)
        return cls(state, ids, _chain(len(ids)), prefill, logits)

    @classmethod
    def of(cls, state: SequenceState, last_token: int, draft: DraftTree) -> "Span":
        """Return the span of a decode step: the last token of the text, then the draft tokens under it."""
        n = 1 + len(draft)
        if n == 1:
            return cls.chain(state, [last_token])
        if draft.drafts is not None:
            return cls(state, np.full(n, last_token, np.int32), _chain(n), device_draft=draft)
        tokens = np.concatenate([[last_token], draft.tokens], dtype=np.int32)
        return cls(state, tokens, _under_root(draft))

    @property
    def row_parents(self) -> Parents:
        """Parents of the rows; a lazy array if a device still computes them."""
        draft = self.device_draft
        return self.parents if draft is None else LazyArray(lambda: _under_root(draft), len(self.tokens))

    def resolved(self) -> "Span":
        """Return the span with tokens and parents of its device draft, once they are computed."""
        if self.device_draft is None:
            return self
        tokens = np.concatenate([self.tokens[:1], self.device_draft.tokens], dtype=np.int32)
        return replace(self, tokens=tokens, parents=_under_root(self.device_draft), device_draft=None)


def _chain(n: int) -> Ints:
    return np.arange(-1, n - 1, dtype=np.int32)


def _under_root(draft: DraftTree) -> Ints:
    """Return the parents of all rows of a span with this draft: row 0 is the last token of the text."""
    return np.concatenate([[-1], draft.parents + 1], dtype=np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Forward:
    """Results of a forward; the arrays are views of the model's memory, valid until its next forward.

    Arrays of a model on a GPU are on the device, which may still be computing them.

    logits: float32 (R, V), or Logits; logits of the rows of spans with `logits`, in order;
        `dflash.kernels.sample.sample_rows` takes both types.
    hidden: float32 (N, D); hidden state of every row after the final norm.
    captured: dict of int to float32 (N, D); residual stream after each captured layer.
    """

    logits: LogitRows
    hidden: Floats
    captured: dict[int, Floats]
    spans: tuple[Span, ...]

    def of(self, i: int) -> LogitRows:
        """Return the logits (n, V) of the i-th span, which must have `logits`."""
        start = sum(len(span.tokens) for span in self.spans[:i] if span.logits)
        return self.logits[start : start + len(self.spans[i].tokens)]

    def rows(self, i: int) -> slice:
        """Return the rows of the i-th span in `hidden` and `captured`."""
        start = sum(len(span.tokens) for span in self.spans[:i])
        return slice(start, start + len(self.spans[i].tokens))


def starts(spans: Sequence[Span]) -> tuple[list[int], list[int]]:
    """Return the first row of each span, and the end of the last span, in `Forward.hidden` and in `Forward.logits`."""
    rows, logits = [0], [0]
    for span in spans:
        rows.append(rows[-1] + len(span.tokens))
        logits.append(logits[-1] + (len(span.tokens) if span.logits else 0))
    return rows, logits


def device_drafts_of(spans: Sequence[Span]) -> dict[DeviceDrafts, list[int]]:
    """Map each draft pass whose trees are still on the device to the span index of each tree, -1 for none."""
    found: dict[DeviceDrafts, list[int]] = {}
    for i, span in enumerate(spans):
        drafts = None if span.device_draft is None else span.device_draft.drafts
        if span.device_draft is not None and drafts is not None and drafts.latest:
            found.setdefault(drafts, [-1] * len(drafts))[span.device_draft.index] = i
    return found


def states_of(spans: Sequence[Span]) -> list[State]:
    """Return the states of spans. A model reads only spans of its own states, which are of this class."""
    return cast("list[State]", [span.state for span in spans])


def is_chain(parents: Ints) -> bool:
    """Return True if the parent of every token is the token before it."""
    n = len(parents)
    return parents[0] == -1 and (n == 1 or bool((parents == _chain(n)).all()))


def depths(parents: Ints) -> Ints:
    """Return the number of ancestors of each token within its span."""
    out = np.zeros(len(parents), np.int32)
    for i, parent in enumerate(parents.tolist()):
        if not -1 <= parent < i:
            raise RequestError(f"parents: token {i} has parent {parent}, which must be -1 or come before it")
        if parent >= 0:
            out[i] = out[parent] + 1
    return out


def check(spans: Sequence[Span], capture: tuple[int, ...], config: Config, max_rows: int) -> None:
    """Check the arguments of `Model.forward`, and reserve KV pages for its tokens. Raises the errors named there."""
    if len({state.slot for state in states_of(spans)}) < len(spans):
        raise KernelError("forward: two spans belong to one sequence")
    if not spans or min(len(span.tokens) for span in spans) < 1:
        raise KernelError("forward: a span without tokens")
    for span in spans:
        span.state.reserve(len(span.tokens))
    n = sum(len(span.tokens) for span in spans)
    if n > max_rows:
        raise KernelError(f"forward: {n} rows, at most {max_rows} fit")
    tokens = spans[0].tokens if len(spans) == 1 else np.concatenate([span.tokens for span in spans])
    if not (tokens.min() >= 0 and tokens.max() < config.n_vocab):
        bad = next(int(t) for t in tokens if not 0 <= t < config.n_vocab)
        raise RequestError(f"token {bad} is not in the vocabulary: ids are 0 to {config.n_vocab - 1}")
    for layer in capture:
        if not 0 <= layer < config.n_layers:
            raise RequestError(f"capture: there is no layer {layer}, layers are 0 to {config.n_layers - 1}")


def ragged(spans: Sequence[Span]) -> tuple[Ints, Ints, Ragged]:
    """Lay out checked spans as rows. Returns tokens, positions: int32 (N,)."""
    states = states_of(spans)
    sizes = [len(span.tokens) for span in spans]
    depth = [_depths(span, n, state.pools.pending) for span, n, state in zip(spans, sizes, states, strict=True)]
    columns = [
        (state.length, state.slot, span.prefill, len(state.accepted), _buffer(span, state, n, len(spans)))
        for span, state, n in zip(spans, states, sizes, strict=True)
    ]
    length, slot, prefill, n_accepted, buffer = np.ascontiguousarray(np.array(columns, np.int32).T)
    accepted = np.zeros((len(spans), PENDING), np.int32)
    for i, state in enumerate(states):
        accepted[i, : len(state.accepted)] = state.accepted
    one = len(spans) == 1
    rows = Ragged(
        row_starts=np.array([0, *accumulate(sizes)], np.int32),
        sequence=np.zeros(sizes[0], np.int32) if one else np.repeat(np.arange(len(spans), dtype=np.int32), sizes),
        parent=spans[0].parents if one else np.concatenate([span.parents for span in spans]),
        depth=depth[0] if one else np.concatenate(depth),
        length=length,
        pages=_pages(states, sizes),
        slot=slot,
        prefill=prefill,
        accepted=accepted,
        n_accepted=n_accepted,
        buffer=buffer,
    )
    tokens = spans[0].tokens if one else np.concatenate([span.tokens for span in spans])
    return tokens, length[rows.sequence] + rows.depth, rows


def next_rows(spans: Sequence[Span]) -> Ragged:
    """Lay out one row after each span of one pending row, as if the pending row were committed."""
    states, n = states_of(spans), len(spans)
    all_accepted = [[*state.accepted, state.first] for state in states]
    columns = [
        (state.length + 1, state.slot, state.plan(rows, state.length + 1, single=True, sequences=n), len(rows), 0, -1)
        for state, rows in zip(states, all_accepted, strict=True)
    ]
    length, slot, buffer, n_accepted, zero, root = np.ascontiguousarray(np.array(columns, np.int32).T)
    rows = np.arange(n + 1, dtype=np.int32)
    accepted = np.zeros((n, PENDING), np.int32)
    for row, of_state in zip(accepted, all_accepted, strict=True):
        row[: len(of_state)] = of_state
    return Ragged(rows, rows[:n], root, zero, length, _pages(states, [2] * n), slot, zero, accepted, n_accepted, buffer)


def _buffer(span: Span, state: State, n: int, sequences: int) -> int:
    """Return `Ragged.buffer` for a span of `n` tokens."""
    return state.plan(state.accepted, state.length, single=n == 1 and not span.prefill, sequences=sequences)


def _pages(states: Sequence[State], sizes: Sequence[int]) -> Ints:
    """Return the pages (B, P) that new tokens reach, `sizes` for each sequence, which may hold more pages."""
    used = [-(-(state.length + n) // PAGE) for state, n in zip(states, sizes, strict=True)]
    pages = np.zeros((len(states), max(used)), np.int32)
    for row, state, n in zip(pages, states, used, strict=True):
        row[:n] = state.pages[:n]
    return pages


def _depths(span: Span, n: int, pending: int) -> Ints:
    chain = is_chain(span.parents)
    if span.prefill and not chain:
        raise KernelError(f"forward: a prefill of {n} tokens forks, must be a chain")
    if n > pending and not span.prefill:
        raise KernelError(
            f"forward: {n} pending tokens of a sequence, at most {pending} fit; load the model with pending=1 to {PENDING}"
        )
    return np.arange(n, dtype=np.int32) if chain else depths(span.parents)
