"""What goes into a forward and what comes out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dflash.errors import KernelError, RequestError
from dflash.kernels.ragged import PAGE, PENDING, Ragged
from dflash.model.config import Config
from dflash.model.state.sequence_state import State

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]


class DeviceDraft(Protocol):
    """A tree under the last token of a text that one pass of a draft on a device makes, with those of other texts.

    Attributes
    ----------
    guesses : object
        All of that pass, in the device's memory.
    index : int
        Which of them this is.
    tokens, parents : int32 (n,)
        Of the guesses, -1 being that last token; whoever looks waits for them.
    """

    guesses: Any
    index: int

    @property
    def tokens(self) -> Ints: ...  # noqa: D102
    @property
    def parents(self) -> Ints: ...  # noqa: D102


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """Tokens that one sequence has read next.

    Parameters
    ----------
    state : State
        Of the sequence.
    tokens : int32 (n,)
        At least one. In a decode step the first is the last, unread token of the text, the others are guesses.
    parents : int32 (n,)
        The token above each one, counted within the span, before it; -1 follows the committed text.
    prefill : bool
        Prefill: the tokens are a chain and become text by being read.
    logits : bool
        Whether logits of these tokens are wanted.
    device_draft : DeviceDraft, optional
        Tokens and parents beside the first, where they are still being made on a device; those here then are any.
    """

    state: State
    tokens: Ints
    parents: Ints
    prefill: bool = False
    logits: bool = True
    device_draft: "DeviceDraft | None" = None


@dataclass(frozen=True, slots=True, eq=False)
class Forward:
    """What a forward found; the arrays are views of the model's memory and last until its next forward.

    Those of a GPU's model are on the device, and may still be being computed.

    Parameters
    ----------
    logits : float32 (R, V), or Logits
        Rows of the spans that wanted them, in order; `dflash.kernels.sample.sample_rows` takes both.
    hidden : float32 (N, D)
        Every row after the final norm.
    captured : dict of int to float32 (N, D)
        The residual stream after some layers.
    spans : tuple of Span
    """

    logits: Floats
    hidden: Floats
    captured: dict[int, Floats]
    spans: tuple[Span, ...]

    def of(self, i: int) -> Floats:
        """Logits (n, V) of the i-th span, which wanted them."""
        start = sum(len(span.tokens) for span in self.spans[:i] if span.logits)
        return self.logits[start : start + len(self.spans[i].tokens)]

    def rows(self, i: int) -> slice:
        """Rows of the i-th span in `hidden` and `captured`."""
        start = sum(len(span.tokens) for span in self.spans[:i])
        return slice(start, start + len(self.spans[i].tokens))


def starts(spans: Sequence[Span]) -> tuple[list[int], list[int]]:
    """Where each span's rows begin in `Forward.hidden` and in `Forward.logits`, and where the last one's end."""
    rows, logits = [0], [0]
    for span in spans:
        rows.append(rows[-1] + len(span.tokens))
        logits.append(logits[-1] + (len(span.tokens) if span.logits else 0))
    return rows, logits


def resolved(span: Span) -> Span:
    """The same span with its guess written out."""
    if span.device_draft is None:
        return span
    tokens = np.concatenate([span.tokens[:1], span.device_draft.tokens], dtype=np.int32)
    return replace(span, tokens=tokens, parents=row_parents(span.device_draft), device_draft=None)


def row_parents(guess: DeviceDraft) -> Ints:
    """Parents of all rows of a span with such a guess."""
    return np.concatenate([[-1], guess.parents + 1], dtype=np.int32)


def device_drafts_of(spans: Sequence[Span]) -> dict[Any, list[int]]:
    """The guesses of passes of drafts that still lie on the device, with the span that each of them is for; -1 is none."""
    found: dict[Any, list[int]] = {}
    for i, span in enumerate(spans):
        guesses = None if span.device_draft is None else span.device_draft.drafts
        if span.device_draft is not None and guesses is not None and guesses.latest:
            found.setdefault(guesses, [-1] * len(guesses))[span.device_draft.index] = i
    return found


def is_chain(parents: Ints) -> bool:
    """Whether every token follows the one before it."""
    n = len(parents)
    return parents[0] == -1 and (n == 1 or bool((parents == np.arange(-1, n - 1, dtype=np.int32)).all()))


def depths(parents: Ints) -> Ints:
    """How many ancestors each token of a span has in it."""
    out = np.zeros(len(parents), np.int32)
    for i, parent in enumerate(parents.tolist()):
        if not -1 <= parent < i:
            raise RequestError(f"parents: token {i} has parent {parent}, which must be -1 or come before it")
        if parent >= 0:
            out[i] = out[parent] + 1
    return out


def check(spans: Sequence[Span], capture: tuple[int, ...], config: Config, most: int) -> None:
    """Refuse what a model can't read, and hold pages for the rest.

    Parameters
    ----------
    spans : sequence of Span
    capture : tuple of int
        Layers.
    config : Config
        Of the model.
    most : int
        Most rows of a forward.

    Raises
    ------
    RequestError
        If a token is not in the vocabulary or a layer does not exist.
    PoolExhausted
        If there are no pages for the tokens.
    KernelError
        If there are too many rows, a span has none, or two are of one sequence.
    """
    if len({span.state.slot for span in spans}) < len(spans):
        raise KernelError("forward: two spans are of one sequence")
    if not spans or min(len(span.tokens) for span in spans) < 1:
        raise KernelError("forward: a span without tokens")
    for span in spans:
        span.state.reserve(len(span.tokens))
    n = sum(len(span.tokens) for span in spans)
    if n > most:
        raise KernelError(f"forward: {n} rows, at most {most} fit")
    for span in spans:
        if not (span.tokens.min() >= 0 and span.tokens.max() < config.n_vocab):
            bad = next(int(t) for t in span.tokens if not 0 <= t < config.n_vocab)
            raise RequestError(f"token {bad} is not in the vocabulary: ids are 0 to {config.n_vocab - 1}")
    for layer in capture:
        if not 0 <= layer < config.n_layers:
            raise RequestError(f"capture: there is no layer {layer}, layers are 0 to {config.n_layers - 1}")


def ragged(spans: Sequence[Span]) -> tuple[Ints, Ints, Ragged]:
    """Lay checked spans out as rows.

    Returns
    -------
    tokens, positions : int32 (N,)
    rows : Ragged

    Raises
    ------
    RequestError
        If parents are not in order.
    KernelError
        If a span is too long to be pending.
    """
    states = [span.state for span in spans]
    sizes = [len(span.tokens) for span in spans]
    depth = [_depths(span, n) for span, n in zip(spans, sizes, strict=True)]
    columns = [
        (state.length, state.slot, span.prefill, len(state.kept), state.side)
        for span, state in zip(spans, states, strict=True)
    ]
    length, slot, whole, n_kept, side = np.ascontiguousarray(np.array(columns, np.int32).T)
    # a text may hold many more pages than these rows can see
    used = [-(-(state.length + n) // PAGE) for state, n in zip(states, sizes, strict=True)]
    pages = np.zeros((len(spans), max(used)), np.int32)
    kept = np.zeros((len(spans), PENDING), np.int32)
    for i, state in enumerate(states):
        pages[i, : used[i]] = state.pages[: used[i]]
        kept[i, : len(state.kept)] = state.kept
    one = len(spans) == 1
    rows = Ragged(
        first=np.array([0, *accumulate(sizes)], np.int32),
        sequence=np.zeros(sizes[0], np.int32) if one else np.repeat(np.arange(len(spans), dtype=np.int32), sizes),
        parent=spans[0].parents if one else np.concatenate([span.parents for span in spans]),
        depth=depth[0] if one else np.concatenate(depth),
        length=length,
        pages=pages,
        slot=slot,
        whole=whole,
        kept=kept,
        n_kept=n_kept,
        side=side,
    )
    tokens = spans[0].tokens if one else np.concatenate([span.tokens for span in spans])
    return tokens, length[rows.sequence] + rows.depth, rows


def next_rows(spans: Sequence[Span]) -> Ragged:
    """Lay out the row after each span of one pending row, as if that row were committed."""
    states, n = [span.state for span in spans], len(spans)
    used = [-(-(state.length + 2) // PAGE) for state in states]
    pages = np.zeros((n, max(used)), np.int32)
    for i, state in enumerate(states):
        pages[i, : used[i]] = state.pages[: used[i]]
    columns = [(state.length + 1, state.slot, state.side, 0, 1, -1) for state in states]
    length, slot, side, zero, one, root = np.ascontiguousarray(np.array(columns, np.int32).T)
    rows = np.arange(n + 1, dtype=np.int32)
    kept = np.zeros((n, PENDING), np.int32)
    return Ragged(rows, rows[:n], root, zero, length, pages, slot, zero, kept, one, side)


def _depths(span: Span, n: int) -> Ints:
    chain = is_chain(span.parents)
    if (span.prefill and not chain) or (n > PENDING and not span.prefill):
        raise KernelError(f"forward: more than {PENDING} pending tokens or a prefill that forks: {n} tokens")
    return np.arange(n, dtype=np.int32) if chain else depths(span.parents)
