"""How an MTP head on a GPU reads and guesses: one pass over what is new, then one for each further guess, as one graph."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from dflash.kernels import device
from dflash.kernels.device_arrays import DeviceArrays
from dflash.kernels.linear.cuda import BUCKETS, Launch
from dflash.kernels.norm.cuda import RmsNorm
from dflash.kernels.ragged import PENDING
from dflash.kernels.sample.candidates import POOL
from dflash.kernels.sample.cuda import LAW
from dflash.kernels.sample.cuda_candidates import Candidates, describe
from dflash.kernels.tree.cuda import OUTLINE, SEQUENCES, Features, Grow, Pick, context_shapes, guesses
from dflash.model.cuda.graphs import Graphs
from dflash.model.cuda.mtp.reading import Parts, Reading
from dflash.model.draft.ask import Wish
from dflash.model.state import State

MOST = 8
"""Most guesses below each other."""


class Chain:
    """Reads rows of up to 16 texts, at most 64 together, and guesses how each goes on.

    Parameters
    ----------
    parts : Parts
    pages : int
        Most of a text.

    Attributes
    ----------
    arrays : DeviceArrays
        What a pass reads: those of `context_shapes`, pages (S, P), laws (S, words), outlines (S, 4), sources, the address of
        the trunk's hidden rows, alone (2,), counts of the later passes, and next (MOST, S), where what is guessed is read.
    ids, scores : (MOST * S, POOL)
        Candidates; those of one depth lie together.
    out : DeviceArrays
        What was guessed; see `dflash.kernels.tree.cuda.guesses`.
    """

    def __init__(self, parts: Parts, pages: int) -> None:
        self._parts, s, width = parts, SEQUENCES, parts.config.width
        shapes = {"pages": (s, pages), "laws": (s, LAW.itemsize // 4), "outlines": (s, OUTLINE), "sources": (2,)}
        self.arrays = a = DeviceArrays(**context_shapes(), **shapes, alone=(2,), next=(MOST, s))
        room = {"pages": a.pages, "max_pages": pages, "max_sequences": s}
        own = {name: getattr(a, name) for name in ("counts", "first", "sequence", "parent", "depth", "length", "position")}
        hidden = device.empty(PENDING, width)
        self._take = Features(a.sources.view(np.uint64), a.counts, a.row, width, hidden)
        batch = SimpleNamespace(**own, tokens=a.token, max_rows=PENDING, **room)
        self._reading = reading = Reading(parts, batch, hidden)
        stream = device.array(np.array([reading.stream.data.ptr], np.uint64))
        self._last, self._seen = device.empty(s, width), device.empty(s, width)
        self._take_last = Features(stream, a.counts, a.last, width, self._last, which=1)
        self._wanted, self._logits = device.empty(s, width, dtype=np.float16), device.empty(s, parts.config.n_vocab)
        self._head = Launch(self._wanted, [parts.output], [self._logits])
        self.ids, self.scores = device.zeros(MOST * s, POOL, dtype=np.int32), device.zeros(MOST * s, POOL)
        self.out = guesses(s)
        self._grow = Grow(self.ids, self.scores, a.outlines, self.out, apart=s)
        every, none = np.arange(s + 1, dtype=np.int32), np.zeros(s, np.int32)
        fixed = {"first": every, "sequence": every[:s], "parent": none - 1, "depth": none}
        self._fixed = {name: device.array(values) for name, values in fixed.items()} | room
        self._steps: list[tuple[Pick | None, Reading | None, RmsNorm, Candidates]] = []
        self._graphs = Graphs(self._launch, self._clear)

    def lay(self, states: Sequence[State], hidden: Any, wishes: Sequence[Wish] = ()) -> None:
        """Say which texts are read, where the trunk's rows lie and what is wanted.

        What else there is must lie in ``arrays.host``, or is for a kernel to say.
        """
        host = self.arrays.host
        host.alone[:] = len(states)
        for i, state in enumerate(states):
            host.pages[i, : len(state.pages)] = state.pages
        host.sources.view(np.uint64)[0] = hidden.data.ptr
        if wishes:
            describe(host.laws, [wish.law for wish in wishes])
            for i, wish in enumerate(wishes):
                host.outlines[i] = i, wish.positions, wish.width, wish.nodes
        self.arrays.upload()

    def prepare(self, n_rows: int, n_texts: int = 0, depth: int = 0) -> tuple[int, int, int]:
        """Make ready to read up to `n_rows` rows and to guess `depth` tokens of some texts; what `run` is told."""
        for t in range(len(self._steps), depth):
            self._bind(t)
        size = next(bucket for bucket in BUCKETS if bucket >= n_rows), n_texts, depth
        self._graphs.prepare(size)
        return size

    def run(self, size: tuple[int, int, int]) -> None:
        """Do what the arrays say."""
        self._graphs(size)

    def _bind(self, t: int) -> None:
        """Make the launches of the guess at depth `t`: the pass that reads the one before, the norm, and candidates."""
        s, a, source = SEQUENCES, self.arrays, self._last
        part, pick, step = slice(t * s, (t + 1) * s), None, None
        if t:
            tokens, where = device.zeros(s, dtype=np.int32), a.next[t - 1]
            pick = Pick(self.ids[(t - 1) * s :], POOL, tokens)
            own = {"counts": a.alone, "length": where, "position": where, "tokens": tokens, "max_rows": s}
            step = Reading(self._parts, SimpleNamespace(**self._fixed, **own), self._seen)
            source = step.stream
        norm = RmsNorm(source, self._parts.norm, self._parts.config.norm_eps, half=self._wanted, full=self._seen)
        out = self.ids[part], self.scores[part]
        self._steps.append((pick, step, norm, Candidates(self._logits, a.laws, a.next[t], each=1, shift=1, out=out)))

    def _launch(self, size: tuple[int, int, int]) -> None:
        n_rows, n_texts, depth = size
        self._take(n_rows)
        self._reading(n_rows)
        if depth == 0:
            return
        self._take_last(n_texts)
        for pick, step, norm, candidates in self._steps[:depth]:
            if pick is not None and step is not None:
                pick()
                step(n_texts)
            norm(n_texts)
            self._head(n_texts)
            candidates(n_texts)
        self._grow(n_texts)

    def _clear(self) -> None:
        self.arrays.counts.fill(0)
        self.arrays.alone.fill(0)
