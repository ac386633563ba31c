"""Draft loop of an MTP head on a GPU: one pass over unread tokens, then one per further draft token, in one graph."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from dflash.kernels.arrays import GpuArray
from dflash.kernels.gpu import device
from dflash.kernels.gpu.buffers import DeviceArrays
from dflash.kernels.linear.cuda import BUCKETS, DecodeLinear
from dflash.kernels.norm.cuda import RmsNorm
from dflash.kernels.ragged import PENDING
from dflash.kernels.sample.candidates import POOL
from dflash.kernels.sample.cuda_candidates import FindCandidates, Largest, describe
from dflash.kernels.sample.cuda_layout import LAW
from dflash.kernels.tree.cuda import OUTLINE, SEQUENCES, BuildTree, Features, GatherTop1, context_shapes, draft_arrays
from dflash.model.cuda.graphs import Graphs
from dflash.model.cuda.mask_logits import bury
from dflash.model.cuda.mtp.block import MtpContext, Reading
from dflash.model.draft.request import DeviceDraftRequest, shared_draft_vocab
from dflash.model.state.sequence_state import State

MOST = 8
"""Most draft tokens below each other; each takes a pass of the head."""


class LoopGraphKey(NamedTuple):
    """Key of a captured graph.

    rows: rows that are read.
    texts, depth: number of sequences, and of draft positions for each.
    chains: whether only the likeliest token of each position is needed.
    draft_vocab: index of the smaller draft vocabulary; None for the full one.
    """

    rows: int
    texts: int
    depth: int
    chains: bool
    draft_vocab: int | None


class _LoopStep(NamedTuple):
    """Launches of one draft position; the first position continues from the unread tokens and has no `picks` and `read`.

    In `picks` and `candidates`, the first item is for all candidates, the second for the likeliest token alone.
    """

    picks: tuple[GatherTop1, GatherTop1] | None
    read: Reading | None
    norm: RmsNorm
    candidates: tuple[FindCandidates, Largest]


class DraftLoop:
    """Reads rows of up to 16 sequences, at most 64 in all, and drafts the tokens that follow each.

    pages: most pages of a sequence.
    arrays: inputs of a pass: arrays of `context_shapes`; ``pages`` (S, P), ``row_params`` (S, words), ``outlines`` (S, 4);
        ``sources``, the address of the trunk's hidden rows; ``alone`` (2,), counts of the later passes; ``next`` (MOST, S),
        positions at which draft tokens are read.
    ids, scores: candidates; those of one position lie together.
    out: draft trees in the layout of `dflash.kernels.tree.cuda`.
    """

    def __init__(self, parts: MtpContext, pages: int) -> None:
        self._parts, s, width = parts, SEQUENCES, parts.config.width
        shapes = {"pages": (s, pages), "row_params": (s, LAW.itemsize // 4), "outlines": (s, OUTLINE), "sources": (2,)}
        self.arrays = a = DeviceArrays(**context_shapes(), **shapes, alone=(2,), next=(MOST, s))
        room = {"pages": a.pages, "max_pages": pages, "max_sequences": s}
        own = {
            name: getattr(a, name) for name in ("counts", "row_starts", "sequence", "parent", "depth", "length", "position")
        }
        hidden = device.empty(PENDING, width)
        self._take = Features(a.sources.view(np.uint64), a.counts, a.row, width, hidden)
        batch = SimpleNamespace(**own, tokens=a.token, max_rows=PENDING, **room)
        self._logits = parts.scratch.alloc(s, parts.config.n_vocab)
        self._reading = reading = Reading(parts, batch, hidden)
        stream = device.array(np.array([reading.stream.data.ptr], np.uint64))
        self._last, self._seen = device.empty(s, width), device.empty(s, width)
        self._take_last = Features(stream, a.counts, a.last, width, self._last, which=1)
        self._wanted = device.empty(s, width, dtype=np.float16)
        self._known = parts.known, *parts.common
        self._heads = [
            DecodeLinear(self._wanted, [parts.output.rows(p) for p in of.parts], [self._logits[:, p] for p in of.parts])
            for of in self._known
        ]
        self.ids, self.scores = device.zeros(MOST * s, POOL, dtype=np.int32), device.zeros(MOST * s, POOL)
        self._largest = device.zeros(MOST * s, 1, dtype=np.int32), device.zeros(MOST * s, 1)
        self.out = draft_arrays(s)
        found = (self.ids, self.scores), self._largest
        self._grow, self._grow_largest = (BuildTree(*pair, a.outlines, self.out, apart=s) for pair in found)
        every, none = np.arange(s + 1, dtype=np.int32), np.zeros(s, np.int32)
        fixed = {"row_starts": every, "sequence": every[:s], "parent": none - 1, "depth": none}
        self._fixed = {name: device.array(values) for name, values in fixed.items()} | room
        self._steps: list[_LoopStep] = []
        self._graphs = Graphs(self._launch, self._clear)
        self._laid: Any = None

    def lay(
        self,
        states: Sequence[State],
        hidden: GpuArray,
        requests: Sequence[DeviceDraftRequest[State]] = (),
        *,
        follows: bool = False,
    ) -> None:
        """Upload pages of the sequences, the address of the trunk's rows, and the requests.

        The caller has written the other inputs to ``arrays.host``. With `follows`, a kernel writes them on the device, and
        an upload equal to the last one is skipped.
        """
        laid = [tuple(state.pages) for state in states], hidden.data.ptr, list(requests)
        if follows and laid == self._laid:
            return
        host = self.arrays.host
        host.alone[:] = len(states)
        for i, state in enumerate(states):
            host.pages[i, : len(state.pages)] = state.pages
        host.sources.view(np.uint64)[0] = hidden.data.ptr
        if requests:
            describe(host.row_params, [request.params for request in requests])
            for i, request in enumerate(requests):
                host.outlines[i] = i, request.positions, request.n_candidates, request.nodes
        self.arrays.upload()
        self._laid = laid if follows else None

    def prepare(
        self, n_rows: int, requests: Sequence[DeviceDraftRequest[State]] = (), *, candidates: bool = False
    ) -> LoopGraphKey:
        """Capture a graph that reads up to `n_rows` rows and answers the requests; return its key for `run`.

        With `candidates`, the graph finds all candidates of each position.
        """
        depth = max((request.positions for request in requests), default=0)
        greedy = all(request.nodes <= request.positions and request.params.scale is None for request in requests)
        for t in range(len(self._steps), depth):
            self._bind(t)
        rows = next(bucket for bucket in BUCKETS if bucket >= n_rows)
        size = LoopGraphKey(rows, len(requests), depth, greedy and not candidates, shared_draft_vocab(requests))
        self._graphs.prepare(size)
        return size

    def run(self, size: LoopGraphKey) -> None:
        """Run the graph of a size on the uploaded arrays."""
        self._graphs(size)

    def _bind(self, t: int) -> None:
        s, a, source = SEQUENCES, self.arrays, self._last
        part, picks, read = slice(t * s, (t + 1) * s), None, None
        if t:
            tokens, where, before = device.zeros(s, dtype=np.int32), a.next[t - 1], slice((t - 1) * s, t * s)
            picks = GatherTop1(self.ids[before], POOL, tokens), GatherTop1(self._largest[0][before], 1, tokens)
            own = {"counts": a.alone, "length": where, "position": where, "tokens": tokens, "max_rows": s}
            read = Reading(self._parts, SimpleNamespace(**self._fixed, **own), self._seen)
            source = read.stream
        norm = RmsNorm(source, self._parts.norm, self._parts.config.norm_eps, half=self._wanted, full=self._seen)
        out, largest = ((ids[part], scores[part]) for ids, scores in ((self.ids, self.scores), self._largest))
        candidates = FindCandidates(self._logits, a.row_params, a.next[t], each=1, shift=1, out=out)
        self._steps.append(_LoopStep(picks, read, norm, (candidates, Largest(self._logits, out=largest))))

    def _launch(self, size: LoopGraphKey) -> None:
        which = 0 if size.draft_vocab is None else 1 + size.draft_vocab
        head = self._heads[which]
        if len(self._known[which]) < self._parts.config.n_vocab:
            bury(self._logits[: size.texts])
        self._take(size.rows)
        self._reading(size.rows)
        if size.depth == 0:
            return
        self._take_last(size.texts)
        for step in self._steps[: size.depth]:
            if step.picks is not None and step.read is not None:
                step.picks[size.chains]()
                step.read(size.texts)
            step.norm(size.texts)
            head(size.texts)
            step.candidates[size.chains](size.texts)
        (self._grow_largest if size.chains else self._grow)(size.texts)

    def _clear(self) -> None:
        self.arrays.counts.fill(0)
        self.arrays.alone.fill(0)
        self._laid = None
