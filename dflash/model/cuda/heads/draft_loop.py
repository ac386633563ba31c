"""Draft loop of a head on a GPU: one pass over unread tokens, then one per further draft token, in one graph."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from dflash.kernels.arrays import GpuArray
from dflash.kernels.formats.cuda import PackedWeight
from dflash.kernels.gpu import device
from dflash.kernels.gpu.buffers import DeviceArrays
from dflash.kernels.linear.cuda import BUCKETS, DecodeLinear
from dflash.kernels.norm.cuda import RmsNorm
from dflash.kernels.ragged import PENDING
from dflash.kernels.sample.candidates import POOL
from dflash.kernels.sample.cuda_candidates import FindCandidates, Largest, describe
from dflash.kernels.sample.cuda_layout import ROW_PARAMS
from dflash.kernels.tree.cuda import OUTLINE, SEQUENCES, BuildTree, Features, GatherTop1, context_shapes, draft_arrays
from dflash.model.cuda.graphs import Graphs
from dflash.model.cuda.heads.reading import BlockContext, HeadBlock
from dflash.model.cuda.mask_logits import mask_all
from dflash.model.cuda.ops import Op
from dflash.model.draft.request import DraftRequest, shared_draft_vocab
from dflash.model.draft.vocabulary import Vocabulary
from dflash.model.state.sequence_state import State

MOST = 8
"""Most draft tokens below each other; each takes a pass of the head."""


_IN_FLIGHT = 16
"""Uploads in flight; many sessions take several passes a step, launched while the target still prefills prompts."""


_TEXTS = 1, 2, 4, 8, SEQUENCES
"""Numbers of sequences that graphs are captured for: a capture takes some 10 ms, and sequences come and go."""


class HeadContext(NamedTuple):
    """Parts of a head from which its draft loop is built.

    block: parts of the block.
    output: LM head.
    norm: float32 (D,); gain of the last norm.
    known: draft vocabulary.
    common: smaller draft vocabularies, from fewer to more tokens.
    reading: ``reading(batch, hidden)`` makes the launches for a batch, whose arrays are named like those of a `DeviceBatch`,
        and hidden states float32 (N, D) of the positions before its rows.
    n_sources: arrays of the target that hold the features of a position.
    project: ``project(sources=, counts=, row=, hidden=)`` makes the launch that writes hidden states of rows from the
        target's features; None if the features are the hidden states.
    normed_output: whether the next position reads the output of the last norm instead of its input.
    """

    block: BlockContext
    output: PackedWeight
    norm: GpuArray
    known: Vocabulary
    common: Sequence[Vocabulary]
    reading: Callable[[SimpleNamespace, GpuArray], HeadBlock]
    n_sources: int = 1
    project: Callable[..., Op] | None = None
    normed_output: bool = True


class LoopGraphKey(NamedTuple):
    """Key of a captured graph.

    rows: rows that are read.
    features: whether hidden states are made from the target's features first.
    texts, depth: number of sequences, one of `_TEXTS`, and of draft positions for each.
    chains: whether only the likeliest token of each position is needed.
    draft_vocab: index of the smaller draft vocabulary; None for the full one.
    """

    rows: int
    features: bool
    texts: int
    depth: int
    chains: bool
    draft_vocab: int | None


class _LoopStep(NamedTuple):
    """Launches of one draft position; the first position continues from the unread tokens and has no `picks` and `read`.

    In `picks` and `candidates`, the first item is for all candidates, the second for the likeliest token alone.
    """

    picks: tuple[GatherTop1, GatherTop1] | None
    read: HeadBlock | None
    norm: RmsNorm
    candidates: tuple[FindCandidates, Largest]


class DraftLoop:
    """Reads rows of up to 16 sequences, at most 64 in all, and drafts the tokens that follow each.

    pages: most pages of a sequence.
    arrays: inputs of a pass: arrays of `context_shapes`; ``pages`` (S, P), ``row_params`` (S, words), ``outlines`` (S, 4);
        ``sources``, addresses of the rows of hidden states, or of the target's features; ``alone`` (2,), counts of the later
        passes; ``next`` (MOST, S), positions at which draft tokens are read.
    ids, scores: candidates; those of one position lie together.
    out: draft trees in the layout of `dflash.kernels.tree.cuda`.
    last_hidden: float32 (S, D) or None; hidden state that the last row of each sequence has read, if it was made from the
        target's features.
    graphs: run a pass on the uploaded arrays.
    """

    def __init__(self, parts: HeadContext, pages: int) -> None:
        self._parts, s, config, scratch = parts, SEQUENCES, parts.block.config, parts.block.scratch
        width = config.width
        shapes = {"pages": (s, pages), "row_params": (s, ROW_PARAMS.itemsize // 4), "outlines": (s, OUTLINE)}
        each = {"sources": (2 * parts.n_sources,), "alone": (2,), "next": (MOST, s)}
        self.arrays = a = DeviceArrays(_IN_FLIGHT, **context_shapes(), **shapes, **each)
        room = {"pages": a.pages, "max_pages": pages, "max_sequences": s}
        own = {
            name: getattr(a, name) for name in ("counts", "row_starts", "sequence", "parent", "depth", "length", "position")
        }
        hidden = device.empty(PENDING, width)
        sources = a.sources.view(np.uint64)
        self._take = Features(sources[:1], a.counts, a.row, width, hidden)
        self._project: Op | None = None
        self.last_hidden: GpuArray = None
        if parts.project is not None:
            self._project = parts.project(sources=sources, counts=a.counts, row=a.row, hidden=hidden)
            self.last_hidden = device.empty(s, width)
            self._keep_last = Features(_address(hidden), a.counts, a.last, width, self.last_hidden, which=1)
        batch = SimpleNamespace(**own, tokens=a.token, max_rows=PENDING, **room)
        ids = parts.known.targets if parts.known.own else None
        self._targets = None if ids is None else device.array(ids)
        self._n_logits = config.n_vocab if ids is None else len(ids)
        self._logits = scratch.alloc(s, self._n_logits)
        self._reading = reading = parts.reading(batch, hidden)
        self._last, self._seen = device.empty(s, width), device.empty(s, width)
        self._take_last = Features(_address(reading.stream), a.counts, a.last, width, self._last, which=1)
        self._wanted = device.empty(s, width, dtype=np.float16)
        self._known = parts.known, *parts.common
        self._heads = [
            DecodeLinear(self._wanted, [parts.output.rows(p) for p in of.parts], [self._logits[:, p] for p in of.parts])
            for of in self._known
        ]
        self.ids, self.scores = device.zeros(MOST * s, POOL, dtype=np.int32), device.zeros(MOST * s, POOL)
        self._largest = device.zeros(MOST * s, 1, dtype=np.int32), device.zeros(MOST * s, 1)
        self.out = draft_arrays(s)
        self._grow = BuildTree(self.ids, self.scores, a.outlines, self.out, apart=s)
        self._grow_largest = BuildTree(*self._largest, a.outlines, self.out, apart=s, targets=self._targets)
        every, none = np.arange(s + 1, dtype=np.int32), np.zeros(s, np.int32)
        fixed = {"row_starts": every, "sequence": every[:s], "parent": none - 1, "depth": none}
        self._fixed = {name: device.array(values) for name, values in fixed.items()} | room
        self._steps: list[_LoopStep] = []
        self.graphs = Graphs(self._launch, self._clear)
        self._laid: Any = None

    def lay(
        self,
        states: Sequence[State],
        sources: Sequence[GpuArray],
        requests: Sequence[DraftRequest[State]],
        *,
        follows: bool = False,
    ) -> None:
        """Upload pages of the sequences, addresses of the rows of hidden states or features, and the requests.

        The caller has written the other inputs to ``arrays.host``. With `follows`, a kernel writes them on the device, and
        an upload equal to the last one is skipped.
        """
        laid = [tuple(state.pages) for state in states], [array.data.ptr for array in sources], list(requests)
        if follows and laid == self._laid:
            return
        host = self.arrays.host
        host.alone[:] = len(states)
        for i, state in enumerate(states):
            host.pages[i, : len(state.pages)] = state.pages
        host.sources.view(np.uint64)[: len(sources)] = laid[1]
        describe(host.row_params, [request.params for request in requests])
        for i, request in enumerate(requests):
            host.outlines[i] = i, request.n_draft, request.n_candidates, request.n_nodes
        self.arrays.upload()
        self._laid = laid if follows else None

    def prepare(
        self,
        n_rows: int,
        requests: Sequence[DraftRequest[State]],
        *,
        candidates: bool = False,
        features: bool = False,
    ) -> LoopGraphKey:
        """Capture a graph that reads up to `n_rows` rows and answers the requests; return its key.

        A graph of more sequences than there are requests finds nothing in their rows, and nobody reads their trees.
        With `candidates`, the graph finds all candidates of each position; with `features`, it reads the target's features.
        """
        depth = max(request.n_draft for request in requests)
        greedy = all(request.is_chain and request.params.scale is None for request in requests)
        for t in range(len(self._steps), depth):
            self._bind(t)
        rows, texts = (next(n for n in sizes if n >= least) for sizes, least in ((BUCKETS, n_rows), (_TEXTS, len(requests))))
        projects = features and self._project is not None
        size = LoopGraphKey(rows, projects, texts, depth, greedy and not candidates, shared_draft_vocab(requests))
        self.graphs.prepare(size)
        return size

    def _bind(self, t: int) -> None:
        s, a, source, parts = SEQUENCES, self.arrays, self._last, self._parts
        part, picks, read = slice(t * s, (t + 1) * s), None, None
        if t:
            tokens, where, before = device.zeros(s, dtype=np.int32), a.next[t - 1], slice((t - 1) * s, t * s)
            of_all = GatherTop1(self.ids[before], POOL, tokens)
            picks = of_all, GatherTop1(self._largest[0][before], 1, tokens, targets=self._targets)
            own = {"counts": a.alone, "length": where, "position": where, "tokens": tokens, "max_rows": s}
            above = self._steps[t - 1].read
            stream = self._last if above is None else above.stream
            read = parts.reading(SimpleNamespace(**self._fixed, **own), self._seen if parts.normed_output else stream)
            source = read.stream
        full = {"full": self._seen} if parts.normed_output else {}
        norm = RmsNorm(source, parts.norm, parts.block.config.norm_eps, half=self._wanted, **full)
        out, largest = ((ids[part], scores[part]) for ids, scores in ((self.ids, self.scores), self._largest))
        about: dict[str, Any] = {"each": 1, "shift": 1, "out": out, "targets": self._targets}
        candidates = FindCandidates(self._logits, a.row_params, a.next[t], **about)
        self._steps.append(_LoopStep(picks, read, norm, (candidates, Largest(self._logits, out=largest))))

    def _launch(self, size: LoopGraphKey) -> None:
        which = 0 if size.draft_vocab is None else 1 + size.draft_vocab
        head = self._heads[which]
        if len(self._known[which]) < self._n_logits:
            mask_all(self._logits[: size.texts])
        if size.features and self._project is not None:
            self._project(size.rows)
            self._keep_last(size.texts)
        else:
            self._take(size.rows)
        self._reading(size.rows)
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


def _address(array: GpuArray) -> GpuArray:
    """Return the address of an array, as an array on the device."""
    return device.array(np.array([array.data.ptr], np.uint64))
