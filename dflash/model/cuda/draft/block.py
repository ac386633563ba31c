"""Proposal of a draft model on a GPU: blocks of rows through its layers, logits, candidates, and a draft tree."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from dflash.kernels.attention.cuda import Workspace
from dflash.kernels.block_attention.cuda import DeviceBlocks
from dflash.kernels.formats.cuda import PackedWeight
from dflash.kernels.gpu import device
from dflash.kernels.gpu.buffers import DeviceArrays
from dflash.kernels.linear.cuda import DecodeLinear
from dflash.kernels.norm.cuda import RmsNorm
from dflash.kernels.norm.split import SplitNorm, carried, sums
from dflash.kernels.ragged import PAGE, PENDING
from dflash.kernels.sample.cuda_candidates import FindCandidates, Largest, describe
from dflash.kernels.sample.cuda_layout import ROW_PARAMS
from dflash.kernels.sample.cuda_pairs import Pairs
from dflash.kernels.soft_cap.cuda import SoftCap
from dflash.kernels.tree.cuda import OUTLINE, BuildTree, draft_arrays
from dflash.model.cuda.draft.markov import Markov
from dflash.model.cuda.draft.rings import DeviceRings, rows_of
from dflash.model.cuda.graphs import Graphs
from dflash.model.cuda.mask_logits import mask_all
from dflash.model.cuda.ops import Norm, Ops
from dflash.model.cuda.scratch_arena import ScratchArena
from dflash.model.cuda.weights import DeviceWeights
from dflash.model.draft.config import DraftConfig
from dflash.model.draft.request import DraftRequest, shared_draft_vocab
from dflash.model.draft.state import DraftState
from dflash.model.draft.vocabulary import Vocabulary
from dflash.model.network.draft import draft
from dflash.model.run.cuda import Device, DraftBatch, Launches, Step, steps_of
from dflash.model.run.memory import Memory


class BlockGraphKey(NamedTuple):
    """Key of a captured graph.

    chains: whether only the likeliest token of each position is needed.
    pairs: whether a DSpark draft scores pairs of candidates, which only trees need.
    draft_vocab: index of the smaller draft vocabulary; None for the full one.
    """

    texts: int
    chains: bool
    pairs: bool
    draft_vocab: int | None


class DraftBlock:
    """Blocks of several sequences, from their anchors to draft trees.

    arrays: inputs of a pass: ``counts`` (2,), ``row_starts`` (S + 1,), ``slot`` (S,); ``begin`` (S,), first context
        position; ``seen`` (S,), first position still in the ring; ``length`` (S,), end of the context; ``sequence``,
        ``tokens``, ``position`` (64,) of each row; ``row_params`` (S, words), ``outlines`` (S, 4).
    reach: int32 (S,) or None; number of draft positions of each sequence; None if there is no limit by confidence.
    graphs: run a pass on the uploaded arrays.
    """

    def __init__(
        self,
        weights: DeviceWeights,
        config: DraftConfig,
        rings: DeviceRings,
        tables: tuple[PackedWeight, PackedWeight],
        *,
        vocabulary: Vocabulary,
        common: Sequence[Vocabulary],
        n_texts: int,
        min_confidence: float,
        scratch: ScratchArena,
    ) -> None:
        self._config, self._rings, n = config, rings, PENDING
        text, row = (n_texts,), (n,)
        shapes = {
            "counts": (2,),
            "row_starts": (n_texts + 1,),
            "row_params": (n_texts, ROW_PARAMS.itemsize // 4),
            "outlines": (n_texts, OUTLINE),
        }
        shapes |= dict.fromkeys(("slot", "begin", "seen", "length"), text)
        shapes |= dict.fromkeys(("sequence", "tokens", "position"), row)
        self.arrays = a = DeviceArrays(**shapes)
        s = _space(config, n)
        self._logits = s.logits = scratch.alloc(n, len(vocabulary))
        blocks = DeviceBlocks(a.counts, a.row_starts, a.slot, a.seen, a.length)
        # keys and values of row i of the batch are written at place i of a single page
        own = rows_of(a, pages=device.zeros(n_texts, 1, dtype=np.int32), length=a.row_starts)
        where = DraftBatch(config.block, blocks, own, s.k, s.v, Workspace(scratch.alloc))
        gain, eps = weights.vector("output_norm.weight"), config.norm_eps
        last: Norm = (
            RmsNorm(s.stream, gain, eps, half=s.wanted)
            if config.conv_width
            else SplitNorm(s.stream, gain, eps, half=s.wanted, squares=s.squares)
        )
        batch = SimpleNamespace(tokens=a.tokens, position=a.position, max_sequences=n_texts, max_rows=n)
        ops, shared = Ops(None, batch, prefill=False, empty=scratch.alloc), {"token_embd.weight": tables[0]}
        on = Device(ops, weights, s, Memory.of_rings(rings.k, rings.v), eps=eps, shared=shared, draft=where)
        start, layers, _ = Launches.of(draft(config)[0], on, last=last)
        own_norm: list[Step] = [last] if isinstance(last, RmsNorm) else []
        self._network: list[Step] = [*steps_of([*start, *(made for layer in layers for made in layer)]), *own_norm]

        def head(of: Vocabulary, columns: Sequence[slice]) -> DecodeLinear:
            rows, outs = [tables[1].rows(part) for part in of.parts], [s.logits[:, part] for part in columns]
            return DecodeLinear(s.wanted, rows, outs, scale=config.logit_scale, **carried(input_norm=last))

        self._head = head(vocabulary, vocabulary.columns())
        self._common = [head(of, of.parts) for of in common]
        self._cap = SoftCap(s.logits, config.logit_cap) if config.logit_cap else None
        self.out = draft_arrays(n_texts)
        self._gate: DecodeLinear | None = None
        targets = None if vocabulary.targets is None else device.array(vocabulary.targets)
        if config.kind == "dflash2":
            self._gate = DecodeLinear(s.wanted, [weights.matrix("selector_hidden.weight")], [s.gates])
            codes = weights.matrix("selector_predecessor.weight"), weights.matrix("selector_successor.weight")
            shape: dict[str, Any] = {
                "each": config.block,
                "lead": config.lead,
                "top": min(config.selector_top, len(vocabulary)),
            }
            given = {"row_params": a.row_params, "position": a.position, "tokens": a.tokens, "targets": targets}
            self.candidates: FindCandidates | Markov | Pairs = Pairs(s.logits, s.gates, codes, **given, **shape)
        elif config.kind == "dspark":
            given = {"vocabulary": vocabulary, "targets": targets, "stream": s.stream, "min_confidence": min_confidence}
            self.candidates = Markov(weights, config, s.logits, a, **given)
        else:
            about: dict[str, Any] = {"each": config.block, "shift": 1 - config.lead, "targets": targets}
            self.candidates = FindCandidates(s.logits, a.row_params, a.position, **about)
        found = self.candidates
        ranked = found.edges if isinstance(found, Pairs) else found.scores
        self.reach = found.reach if isinstance(found, Markov) else None
        self._grow = BuildTree(found.ids, ranked, a.outlines, self.out, reach=self.reach)
        if isinstance(found, Markov):
            self._grow_pairs = BuildTree(found.pairs.ids, found.pairs.edges, a.outlines, self.out, reach=self.reach)
        self._largest: Largest | Markov | None = None
        if isinstance(found, FindCandidates):
            self._largest = Largest(s.logits)
            self._grow_largest = BuildTree(self._largest.ids, self._largest.scores, a.outlines, self.out, targets=targets)
        elif isinstance(found, Markov) and targets is None:
            self._largest = found
            self._grow_largest = BuildTree(*found.largest, a.outlines, self.out, reach=self.reach)
        self.graphs = Graphs(self._launch, self._clear)
        self._laid: Any = None

    def lay(self, requests: Sequence[DraftRequest[DraftState]], anchors: Sequence[int] | None = None) -> None:
        """Upload the requests and their anchors.

        anchors: last token of each sequence. If None, a kernel writes the anchors, and an upload equal to the last is
            skipped.
        """
        laid = None if anchors is not None else [(request, request.state.begin) for request in requests]
        if laid is not None and laid == self._laid:
            return
        host, config = self.arrays.host, self._config
        n, size = len(requests), config.block
        host.counts[:] = n * size, n
        host.row_starts[: n + 1] = np.arange(n + 1) * size
        host.sequence[: n * size] = np.repeat(np.arange(n, dtype=np.int32), size)
        describe(host.row_params, [request.params for request in requests])
        pairs = self._wants_pairs(requests)
        for i, request in enumerate(requests):
            state = request.state
            host.slot[i], host.begin[i] = state.slot, state.begin
            host.outlines[i] = (
                i * size + config.lead,
                request.n_draft,
                self.width(request.n_candidates, pairs=pairs),
                request.n_nodes,
            )
        if anchors is not None:
            host.tokens[: n * size] = config.mask
            host.tokens[: n * size : size] = anchors
            lengths = np.array([request.state.length for request in requests], np.int32)
            host.length[:n] = lengths
            host.seen[:n] = np.maximum(host.begin[:n], lengths - self._rings.reach)
            host.position[: n * size] = (lengths[:, None] + np.arange(size)).reshape(-1)
        self.arrays.upload()
        self._laid = laid

    def prepare(self, requests: Sequence[DraftRequest[DraftState]], *, candidates: bool = False) -> BlockGraphKey:
        """Capture a graph that answers the requests; return its key.

        With `candidates`, the graph finds all candidates of each position.
        """
        greedy = all(request.is_chain and request.params.scale is None for request in requests)
        chains, pairs = greedy and not candidates and self._largest is not None, self._wants_pairs(requests)
        size = BlockGraphKey(len(requests), chains, pairs, shared_draft_vocab(requests))
        self.graphs.prepare(size)
        return size

    def width(self, wanted: int, *, pairs: bool) -> int:
        """Return the candidates of a position that the tree considers if `wanted` are requested, with `pairs` or without."""
        if isinstance(self.candidates, Markov) and pairs:
            most = self.candidates.pairs.ids.shape[1]
            return min(wanted, most) if wanted > 1 else most  # a chain in a batch with trees: the best path of all pairs
        return self._config.selector_top or wanted

    def _wants_pairs(self, requests: Sequence[DraftRequest[DraftState]]) -> bool:
        """Return True if this is a DSpark draft and a request is for a tree, which needs scores of pairs."""
        return isinstance(self.candidates, Markov) and any(request.n_candidates > 1 for request in requests)

    def _launch(self, size: BlockGraphKey) -> None:
        n = size.texts * self._config.block
        head = self._head
        if size.draft_vocab is not None:
            head = self._common[size.draft_vocab]
            mask_all(self._logits[:n])
        for step in self._network:
            step(n)
        head(n)
        if self._cap:
            self._cap(n)
        if self._largest is not None and size.chains:
            if isinstance(self._largest, Markov):
                self._largest(n, chains=True)
            else:
                self._largest(n)
            self._grow_largest(size.texts)
            return
        if self._gate is not None:
            self._gate(n)
        self.candidates(n)
        if isinstance(self.candidates, Markov) and size.pairs:
            self.candidates.pairs(n)
            self._grow_pairs(size.texts)
        else:
            self._grow(size.texts)

    def _clear(self) -> None:
        self.arrays.counts.fill(0)
        self._laid = None


def _space(config: DraftConfig, n: int) -> SimpleNamespace:
    """Allocate the arrays of buffers, by name; inputs of multiplies are float16."""
    query, row = config.heads * config.head_size, config.kv_heads * config.head_size
    singles = {"stream": config.width, "attn_q": query, "attn_k": row, "attn_v": row}
    singles |= {"cos": config.n_rot // 2, "sin": config.n_rot // 2}
    halves = {"normed": config.width, "attended": query, "inner": config.ffn, "wanted": config.width}
    if config.conv_width:
        changes = 2 * config.conv_width * (config.width // config.conv_group)
        singles |= {"whole": config.width, "product": config.width, "change": changes}
        halves |= {"mixed": config.width}
    if config.selector_rank:
        singles |= {"gates": config.selector_rank}
    singles |= {"squares": sums(config.width)}
    s = SimpleNamespace(n_rows=n)
    for kind, widths in ((np.float32, singles), (np.float16, halves)):
        for name, width in widths.items():
            setattr(s, name, device.empty(n, width, dtype=kind))
    s.k, s.v = (device.empty(1, PAGE, config.kv_heads, config.head_size, dtype=np.float16) for _ in range(2))
    s.rotated = device.empty(n, config.heads, config.head_size, dtype=np.float16)
    if config.conv_width:
        s.attn_output = s.ffn_down = s.product
        s.attn_conv_proj = s.ffn_conv_proj = s.change
    return s
