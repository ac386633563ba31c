"""A block draft model on a GPU: the interface of `dflash.model.draft.model.BlockDraft`; drafts stay on the device."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import product
from typing import Any, Literal

from dflash.errors import Unsupported
from dflash.kernels.arrays import GpuArray
from dflash.kernels.gpu import device, jit
from dflash.kernels.gpu.batch import DeviceBatch
from dflash.kernels.gpu.staging import Staging
from dflash.kernels.ragged import PENDING
from dflash.kernels.sample import SampleParams
from dflash.kernels.sample.cuda_pairs import Pairs
from dflash.kernels.tree.cuda import SEQUENCES, AcceptPath, WriteDraft
from dflash.model.candidates import Candidates
from dflash.model.cuda.draft.block import DraftBlock
from dflash.model.cuda.draft.context import Context
from dflash.model.cuda.draft.feature_buffer import ROOM, FeatureBuffer, RowNumbers
from dflash.model.cuda.draft.markov import Markov
from dflash.model.cuda.draft.rings import DeviceRings
from dflash.model.cuda.draft.target_copy import TargetCopy
from dflash.model.cuda.launch_ahead import can_launch_ahead, most_rows
from dflash.model.cuda.model import DeviceModel
from dflash.model.cuda.passes import BUCKETS, WIDE_BUCKETS, bucket_of
from dflash.model.cuda.weights import DeviceWeights
from dflash.model.draft.config import DraftConfig
from dflash.model.draft.context import Rows
from dflash.model.draft.files.source import Source
from dflash.model.draft.request import DraftRequest, check_requests
from dflash.model.draft.state import DraftSnapshot, DraftState
from dflash.model.draft.vocabulary import Vocabulary
from dflash.model.protocols.device_drafter import DeviceDrafts

_MOST_HEAD, _MOST_SHARE, _MOST_TOP = 256, 64, 32


class DeviceBlockDraft:
    """Draft model that proposes a block of tokens per pass, for several sequences, on the GPU of its target.

    source: weights of the same file; they are read once and kept on the device, repacked.
    target: target model. Its embedding and LM head are used unless the file has its own; `launch_ahead` reads its batches.
    common: smaller draft vocabularies, from fewer to more tokens; not used by a draft with a soft cap on its logits.
    min_confidence: see `BlockDraft`. Positions beyond the limit stay in the target's pass as draft tokens that are almost
        never accepted. So the target's step can be launched before the number of confident positions is known.
    reach: most positions of a sequence that the context keeps.
    draft_vocabs: the smaller draft vocabularies in use: `common`, or none.
    latest: the drafts that the device memory holds now.
    """

    device: Literal["cuda"] = "cuda"

    def __init__(
        self,
        config: DraftConfig,
        source: Source,
        target: DeviceModel | TargetCopy,
        vocabulary: Vocabulary,
        *,
        common: Sequence[Vocabulary] = (),
        sequences: int,
        context: int,
        min_confidence: float = 0.0,
    ) -> None:
        _refuse(config)
        self.config, self._source, self._target = config, source, target
        # a soft cap would raise masked logits to the level of real ones
        self.draft_vocabs = common = () if config.logit_cap else common
        self._rings = rings = DeviceRings(config, sequences, context)
        self.reach = rings.reach
        self.most_texts = n = max(1, min(PENDING // config.block, sequences, SEQUENCES))
        with device.device_errors(f"the draft ({config.kind})"), Staging(target.threads) as staging:
            weights, theirs = DeviceWeights(source, staging), target.weights
            embedding = (weights if source.has("token_embd.weight") else theirs).matrix("token_embd.weight")
            output = "token_embd.weight" if target.config.tied else "output.weight"
            head = weights.matrix("output.weight") if source.has("output.weight") else theirs.matrix(output)
            self._context = Context(weights, config, rings, target.scratch())
            about: dict[str, Any] = {"n_texts": n, "min_confidence": min_confidence, "scratch": target.scratch()}
            self._block = DraftBlock(
                weights, config, rings, (embedding, head), vocabulary=vocabulary, common=common, **about
            )
        self.weights = weights
        shape: dict[str, Any] = {"rows": config.block, "places": rings.size, "mask": config.mask}
        arrays = self._context.arrays, self._block.out
        self._walk = AcceptPath(target.batch, target.sampled_ids, *arrays, block=self._block.arrays, **shape)
        self._write = WriteDraft(self._block.out, target.batch)
        self._feature_buffer = FeatureBuffer(config.target_layer_ids, rings.slots, config.width)
        self._ahead: DeviceDrafts | None = None
        self.latest: DeviceDrafts | None = None
        jit.warm()

    @property
    def free_slots(self) -> int:
        """Sequences that can still be opened."""
        return self._rings.free

    def warm(self) -> Iterator[None]:
        """Capture passes of the target, and of a chain for one sequence; each step of the iterator captures one.

        Those of the target are also captured for several sequences that do not draft, as many as there may be.
        """
        taps = tuple(sorted(self.config.target_layer_ids))
        for n in (1, self.config.max_draft + 1):
            self._target.prepare([n], taps)
            yield
            self._context.prepare(n)
            yield
        most = bucket_of(min(self._rings.slots, self._target.batch.max_rows))
        for n in (each for each in BUCKETS + WIDE_BUCKETS if 1 < each <= most):
            self._target.prepare([n], taps, single=True)
            yield
        most = self.config.max_draft
        with closing(self.state()) as state:
            for params, some in product((SampleParams(), SampleParams(1.0)), (None, *range(len(self.draft_vocabs)))):
                self._block.prepare([DraftRequest(state, -1, most, params, draft_vocab=some)])
                yield

    def state(self, begin: int = 0) -> DraftState:
        """Begin a sequence; see `BlockDraft.state`."""
        return _State(self, self._rings, begin)

    def read(self, state: DraftState, features: Mapping[int, GpuArray], rows: Rows) -> None:
        """Append the next positions of one sequence to its context; see `BlockDraft.read_many`."""
        self.read_many([(state, rows)], features)

    def read_many(self, items: Sequence[tuple[DraftState, Rows]], features: Mapping[int, GpuArray]) -> None:
        """Append the next positions of several sequences to their contexts; see `BlockDraft.read_many`.

        Rows that `launch_ahead` has read are not read again. A few rows are buffered until the next proposal.
        """
        few, many = list[tuple[DraftState, RowNumbers]](), list[tuple[DraftState, Rows]]()
        n_rows = range(len(features[self.config.target_layer_ids[0]]))
        for state, rows in items:
            numbers = n_rows[rows] if isinstance(rows, slice) else rows
            if self._ahead is not None and self._ahead.awaits(state, features):
                self._ahead.record_accepted(state, len(numbers))
            elif 0 < len(numbers) <= ROOM:
                few.append((state, numbers))
            else:
                many.append((state, numbers))
        self.catch_up([*self._feature_buffer.behind(few), *(state for state, _ in many)])
        if few:
            self._feature_buffer.add(few, features)
        if many:
            self._context.read(many, features)

    def catch_up(self, states: Sequence[DraftState]) -> None:
        """Read the buffered rows of some sequences."""
        items, features = self._feature_buffer.take(states)
        if items:
            self._context.read(items, features)

    def forget(self, state: DraftState) -> None:
        """Drop the buffered rows of a sequence."""
        self._feature_buffer.take([state])

    def propose(self, requests: Sequence[DraftRequest]) -> list[Candidates]:
        """Find candidates for the tokens after the last one of each sequence; see `BlockDraft.propose`."""
        check_requests(requests, self._target.n_vocab, self.config.max_draft)
        found: list[Candidates] = []
        for start in range(0, len(requests), self.most_texts):
            part = requests[start : start + self.most_texts]
            self._launch_pass(part, [request.anchor for request in part], candidates=True)
            with device.device_errors("a draft"):
                reach = (
                    [self.config.max_draft] * len(part) if self._block.reach is None else self._block.reach.get().tolist()
                )
                for i, request in enumerate(part):
                    first = i * self.config.block + self.config.lead
                    found.append(self._found(request, slice(first, first + min(request.n_draft, reach[i]))))
        return found

    def _found(self, request: DraftRequest, rows: slice) -> Candidates:
        """Fetch the candidates of some rows of a block from the device."""
        found: Any = self._block.candidates
        if isinstance(found, Markov) and request.n_candidates > 1:
            found = found.pairs
        width = self._block.width(request.n_candidates, pairs=isinstance(found, Pairs))
        edges = found.edges[rows].get()[:, :width, :width] if isinstance(found, Pairs) else None
        return Candidates(found.ids[rows].get()[:, :width], found.scores[rows].get()[:, :width], edges)

    def draft_on_device(
        self, device_requests: Sequence[DraftRequest[DraftState]], anchors: Sequence[int]
    ) -> DeviceDrafts | None:
        """Draft trees that stay on the device; take those that `launch_ahead` has launched if they match.

        Returns: drafts that the device may still be computing. None if there are too many sequences for one pass.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.matches(device_requests, anchors):
            return ahead
        if len(device_requests) > self.most_texts:
            return None
        self._launch_pass(device_requests, anchors)
        self.latest = DeviceDrafts(self, device_requests, self._block.out, anchors)
        return self.latest

    def launch_ahead(
        self, device_requests: Sequence[DraftRequest[DraftState]], order: Sequence[int], taken: Sequence[int] = ()
    ) -> bool:
        """See `DeviceDrafter.launch_ahead`."""
        target, n = self._target, len(device_requests)
        self.catch_up([device_request.state for device_request in device_requests])
        if n > self.most_texts or target.latest is None or not can_launch_ahead(target, device_requests, order):
            return False
        features = target.latest.captured
        if not all(tap in features for tap in self.config.target_layer_ids):
            return False
        size = self._context.prepare(most_rows(target, order))
        block = self._block.prepare(device_requests)
        self._context.lay([device_request.state for device_request in device_requests], features)
        self._block.lay(device_requests)
        self._walk(order, taken)
        self._context.graphs(size)
        self._block.graphs(block)
        self._ahead = self.latest = DeviceDrafts(self, device_requests, self._block.out, None).reading(features)
        return True

    def writer(self, batch: DeviceBatch) -> Callable[[Sequence[int]], None]:
        """See `DeviceDrafter.writer`."""
        assert batch is self._target.batch
        return self._write

    def close(self) -> None:
        """Close the file."""
        self._source.close()

    def _launch_pass(
        self, device_requests: Sequence[DraftRequest[DraftState]], anchors: Sequence[int], *, candidates: bool = False
    ) -> None:
        self.catch_up([device_request.state for device_request in device_requests])
        size = self._block.prepare(device_requests, candidates=candidates)
        self._ahead = self.latest = None
        self._block.lay(device_requests, anchors)
        self._block.graphs(size)


class _State(DraftState):
    """Context of one sequence, whose last rows may still be buffered."""

    def __init__(self, draft: DeviceBlockDraft, rings: DeviceRings, begin: int) -> None:
        super().__init__(rings, begin)
        self._draft: DeviceBlockDraft | None = draft

    def snapshot(self) -> DraftSnapshot:
        """Read buffered rows, then copy the context; see `DraftState.snapshot`."""
        if self._draft is not None:
            self._draft.catch_up([self])
        return super().snapshot()

    def close(self) -> None:
        """Drop buffered rows and return the slot; see `DraftState.close`."""
        draft, self._draft = self._draft, None  # the draft may hold a reference to this state
        if draft is not None:
            draft.forget(self)
        super().close()


def _refuse(config: DraftConfig) -> None:
    """Raise `Unsupported` for sizes that the GPU kernels do not support."""
    share = config.heads // config.kv_heads
    for what, size, fits, room in (
        ("heads of", config.head_size, config.head_size <= _MOST_HEAD, f"up to {_MOST_HEAD} numbers"),
        ("heads that share keys:", share, share <= _MOST_SHARE, f"up to {_MOST_SHARE}"),
        ("candidates of a selector:", config.selector_top, config.selector_top <= _MOST_TOP, f"up to {_MOST_TOP}"),
    ):
        if not fits:
            raise Unsupported(
                f"draft: {what} {size}, a GPU runs {room}; draft_device='cpu' runs this draft beside a model on one"
            )
