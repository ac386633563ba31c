"""What goes into a forward and what comes out."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dflash.errors import KernelError, RequestError
from dflash.kernels.ragged import PENDING, Ragged
from dflash.model.state import State

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]


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
    whole : bool
        Prefill: the tokens are a chain and become text by being read.
    logits : bool
        Whether logits of these tokens are wanted.
    """

    state: State
    tokens: Ints
    parents: Ints
    whole: bool = False
    logits: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Forward:
    """What a forward found; the arrays are views of the model's memory and last until its next forward.

    Parameters
    ----------
    logits : float32 (R, V)
        Rows of the spans that wanted them, in order.
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


def ragged(spans: Sequence[Span]) -> tuple[Ints, Ints, Ragged]:
    """Lay spans out as rows.

    Returns
    -------
    tokens, positions : int32 (N,)
    rows : Ragged

    Raises
    ------
    RequestError
        If parents are not in order.
    KernelError
        If a span is empty, too long to be pending, or two spans are of one sequence.
    """
    n_spans = len(spans)
    states = [span.state for span in spans]
    sizes = [len(span.tokens) for span in spans]
    if len({state.slot for state in states}) < n_spans:
        raise KernelError("forward: two spans are of one sequence")
    if not n_spans or min(sizes) < 1:
        raise KernelError("forward: a span without tokens")
    depth = []
    for span, n in zip(spans, sizes, strict=True):
        chain = is_chain(span.parents)
        if (span.whole and not chain) or (n > PENDING and not span.whole):
            raise KernelError(f"forward: more than {PENDING} pending tokens or a prefill that forks: {n} tokens")
        depth.append(np.arange(n, dtype=np.int32) if chain else depths(span.parents))
    first = np.zeros(n_spans + 1, np.int32)
    np.cumsum(sizes, out=first[1:])
    length = np.array([state.length for state in states], np.int32)
    pages = np.zeros((n_spans, max(len(state.pages) for state in states)), np.int32)
    kept = np.zeros((n_spans, PENDING), np.int32)
    for i, state in enumerate(states):
        pages[i, : len(state.pages)] = state.pages
        kept[i, : len(state.kept)] = state.kept
    one = n_spans == 1
    sequence = np.zeros(sizes[0], np.int32) if one else np.repeat(np.arange(n_spans, dtype=np.int32), sizes)
    depth_of_rows = depth[0] if one else np.concatenate(depth)
    rows = Ragged(
        first=first,
        sequence=sequence,
        parent=spans[0].parents if one else np.concatenate([span.parents for span in spans]),
        depth=depth_of_rows,
        length=length,
        pages=pages,
        slot=np.array([state.slot for state in states], np.int32),
        whole=np.array([span.whole for span in spans], np.int32),
        kept=kept,
        n_kept=np.array([len(state.kept) for state in states], np.int32),
        side=np.array([state.side for state in states], np.int32),
    )
    tokens = spans[0].tokens if one else np.concatenate([span.tokens for span in spans])
    return tokens, length[sequence] + depth_of_rows, rows
