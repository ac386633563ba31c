"""The forward of few rows: all layers and the head, with their ops joined to few launches."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.arrays import empty
from dflash.kernels.formats import Matrix
from dflash.kernels.joined import MAX_ROWS, Joined
from dflash.kernels.linear import PackedLinear
from dflash.kernels.ragged import Ragged
from dflash.model.layered.block import NormedBlock
from dflash.model.layers import Block
from dflash.model.workspace import ModelWorkspace

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


DIVIDED = 2048
"""Rows times tokens of the longest sequence above which all threads share the pages of a KV head; an estimate of where that
saves more than the extra launches cost."""


def divides(rows: Ragged, n: int) -> bool:
    """Return whether the threads should share the pages of a KV head, between launches."""
    return n * int(rows.length.max()) > DIVIDED


class FewRows:
    """Runs rows of `stream` through all layers, the last norm and the LM head.

    norm: float32 (D,); gain of the last norm.
    eps: epsilon of all norms.
    output: LM head.
    embedding: native embedding of the tokens; if None, the caller fills `stream`.
    inv_freq: float32 (R,), optional; frequencies of the rotary tables; if None, the caller fills them.
    most: most rows of a call.

    Results have the bits of the separate ops. The ops are planned once for each set of captured layers, and for long and
    short sequences.
    """

    def __init__(
        self,
        blocks: Sequence[Block | NormedBlock],
        space: ModelWorkspace,
        norm: Floats,
        eps: float,
        *,
        output: Matrix,
        embedding: Matrix | None,
        inv_freq: Floats | None,
    ) -> None:
        self.most = min(MAX_ROWS, space.n_rows)
        self._blocks, self._space, self._norm, self._eps = blocks, space, norm, eps
        self._embedding, self._inv_freq = embedding, inv_freq
        self._logits = empty(self.most, output.shape[0])
        self._head = PackedLinear(space.all.hidden[: self.most], [output], [self._logits], name="head")
        self._planned: dict[tuple[tuple[int, ...], bool], Joined] = {}
        self._captured: dict[int, Floats] = {}

    def __call__(
        self, rows: Ragged, n: int, tokens: Ints, positions: Ints, capture: tuple[int, ...]
    ) -> tuple[dict[int, Floats], Floats]:
        """Return copies of `stream` after the layers `capture`, and the logits (n, V), valid until the next call."""
        key = capture, divides(rows, n)
        if key not in self._planned:
            self._planned[key] = self._plan(*key)
        self._captured = {}
        self._planned[key](rows, n, tokens, positions)
        return self._captured, self._logits[:n]

    def _plan(self, capture: tuple[int, ...], divided: bool) -> Joined:
        a, joined = self._space.all, Joined(self._eps)
        if self._embedding is not None:
            joined.embed(self._embedding, a.stream)
        if self._inv_freq is not None:
            joined.angles(self._inv_freq, a.cos, a.sin)
        for i, block in enumerate(self._blocks):
            if isinstance(block, Block):
                block.join(joined, divided=divided)
            else:
                joined.call(block)
            if i in capture:
                joined.call(partial(self._capture, i))
        joined.rms_norm(a.stream, self._norm, a.hidden)
        joined.linear(self._head)
        return joined

    def _capture(self, layer: int, rows: Ragged, n: int) -> None:  # noqa: ARG002
        self._captured[layer] = self._space.first(n).stream.copy()
