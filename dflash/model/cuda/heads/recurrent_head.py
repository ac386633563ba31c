"""Heads on a GPU that draft from their own hidden states: what MTP and EAGLE-3 heads share."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import product
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dflash.errors import PoolExhausted
from dflash.kernels.arrays import GpuArray
from dflash.kernels.gpu import device, jit
from dflash.kernels.gpu.batch import DeviceBatch
from dflash.kernels.kv_types import drafter_kv
from dflash.kernels.ragged import PAGE, PENDING
from dflash.kernels.sample import SampleParams
from dflash.kernels.sample.candidates import POOL
from dflash.kernels.tree.cuda import SEQUENCES, AcceptPath, WriteDraft
from dflash.model.candidates import Candidates
from dflash.model.config import Config
from dflash.model.cuda.heads.append_pass import ROWS, AppendPass
from dflash.model.cuda.heads.draft_loop import MOST, DraftLoop, HeadContext
from dflash.model.cuda.heads.feature_rows import FeatureRows, Gatherer
from dflash.model.cuda.launch_ahead import can_launch_ahead, most_rows
from dflash.model.cuda.model import DeviceModel
from dflash.model.cuda.pool_backend import DEVICE
from dflash.model.draft.request import DraftRequest
from dflash.model.draft.vocabulary import Vocabulary
from dflash.model.network.heads import HeadNetwork
from dflash.model.protocols.device_drafter import DeviceDrafts
from dflash.model.recurrent_head import HeadRequest, Rows, Unread, nothing_to_flush
from dflash.model.state.pools import Pools
from dflash.model.state.sequence_state import State

Ints = NDArray[np.int32]
Features = FeatureRows | GpuArray
"""Hidden states (m, D) of some positions, from the target's features."""


class DeviceRecurrentHead:
    """Head on the GPU of its target, with the interface of `RecurrentHead` and drafts that stay on the device."""

    device: Literal["cuda"] = "cuda"
    target_layer_ids: tuple[int, ...] = ()

    def __init__(self, model: DeviceModel, config: Config, common: Sequence[Vocabulary]) -> None:
        self._target, self.draft_vocabs, self.n_features = model, common, config.width
        slots, kv = model.pools.slots, drafter_kv(model.pools.kv)
        # two more pages for each slot: a snapshot's copy of a last page, and draft tokens beyond the end of a text
        self.pools = Pools(config, pages=model.pools.pages + 2 * slots, slots=slots, kv=kv, backend=DEVICE)
        self._hidden = device.empty(PENDING, config.width)
        self._gather = Gatherer(config.width, ROWS)
        self._ahead: DeviceDrafts | None = None
        self.latest: DeviceDrafts | None = None

    def bind(self, context: HeadContext, append: HeadNetwork, table: str) -> None:
        """Make the launches. Called once, when the weights are on the device.

        append: network that only appends keys and values, with the name of its embedding.
        """
        model = self._target
        pages = -(-(model.config.context + 3 * PENDING) // PAGE)
        self._append = AppendPass(context.block, append, table, pages, self._gather)
        self._chain = DraftLoop(context, pages)
        arrays, out = self._chain.arrays, self._chain.out
        self._walk = AcceptPath(model.batch, model.sampled_ids, arrays, out, rows=MOST, position=arrays.next)
        self._write = WriteDraft(out, model.batch)
        jit.warm()

    def warm(self, depth: int) -> Iterator[None]:
        """Capture passes of the target and of the head for one sequence; each step of the iterator captures one."""
        depth = min(depth, MOST)
        with closing(self.state()) as state:
            self._target.prepare([1 + depth], tuple(sorted(self.target_layer_ids)))
            yield
            for rows, some in product((1, 1 + depth), (None, *range(len(self.draft_vocabs)))):
                request = DraftRequest(state, -1, depth, SampleParams(), draft_vocab=some)
                self._chain.prepare(rows, [request], features=True)
                yield

    def state(self) -> State:
        """Begin a sequence; see `RecurrentHead.state`."""
        return State(self.pools, nothing_to_flush)

    def features_of(self, out: Any) -> Any:
        """See `RecurrentHead.features_of`."""
        return out.captured if self.target_layer_ids else out.hidden

    def sources_of(self, features: Any) -> Sequence[GpuArray] | None:
        """Return the arrays that hold features of the target; None if the forward did not capture them."""
        return [features]

    def join(self, parts: Sequence[FeatureRows]) -> FeatureRows:
        """Return hidden states one after the other."""
        return FeatureRows.joined(parts)

    def features_at(self, features: Any, rows: Sequence[Rows], *, prompt: bool) -> list[FeatureRows]:  # noqa: ARG002
        """See `RecurrentHead.features_at`."""
        return FeatureRows.parts_of(features, rows)

    def copies(self, parts: Sequence[FeatureRows]) -> list[FeatureRows]:
        """See `RecurrentHead.copies`."""
        return self._gather.copies(parts)

    def to_array(self, features: FeatureRows) -> GpuArray:
        """See `RecurrentHead.to_array`."""
        self._gather([features], out := device.empty(len(features), self.n_features))
        return out

    def from_array(self, array: GpuArray) -> FeatureRows:
        """See `RecurrentHead.from_array`."""
        return FeatureRows.of(array)

    def read_all(self, items: Sequence[Unread[Features]]) -> None:
        """See `RecurrentHead.read_all`."""
        self._append([each._replace(features=FeatureRows.of(each.features)) for each in items])

    def propose(self, requests: Sequence[HeadRequest]) -> list[Candidates]:
        """Read the unread tokens of some sequences and find candidates for the next ones; see `RecurrentHead.propose`."""
        found: list[Candidates] = []
        for start in range(0, len(requests), SEQUENCES):
            part = requests[start : start + SEQUENCES]
            device_requests = [
                DraftRequest(each.state, -1, min(each.n_draft, MOST), each.params, draft_vocab=each.draft_vocab)
                for each in part
            ]
            self._launch_pass(device_requests, [(request.tokens, request.features) for request in part], candidates=True)
            with device.device_errors("a head"):
                ids, scores = (array.get().reshape(MOST, SEQUENCES, POOL) for array in (self._chain.ids, self._chain.scores))
            for i, request in enumerate(part):
                rows, width = slice(min(request.n_draft, MOST)), slice(request.n_candidates)
                found.append(Candidates(ids[rows, i, width], scores[rows, i, width]))
        return found

    def ready(self, device_requests: Sequence[DraftRequest[State]], anchors: Sequence[int]) -> DeviceDrafts | None:
        """Return the drafts that `launch_ahead` has launched if they answer these requests at these roots, else None."""
        ahead, self._ahead = self._ahead, None
        return ahead if ahead is not None and ahead.matches(device_requests, anchors) else None

    def draft_on_device(
        self,
        device_requests: Sequence[DraftRequest[State]],
        anchors: Sequence[int],
        unread: Sequence[tuple[Ints, Features]],
    ) -> DeviceDrafts | None:
        """Read the unread tokens of some sequences and draft trees that stay on the device.

        Returns: drafts that the device may still be computing. None if they do not fit one pass.
        """
        if len(device_requests) > SEQUENCES or max(device_request.n_draft for device_request in device_requests) > MOST:
            return None
        self._launch_pass(device_requests, unread)
        self.latest = DeviceDrafts(self, device_requests, self._chain.out, anchors)
        return self.latest

    def record_accepted(self, state: State, features: Any, n_rows: int) -> bool:
        """Record that `n_rows` rows of a sequence were accepted; return True if `launch_ahead` has read them."""
        if self._ahead is None or not self._ahead.awaits(state, features):
            return False
        self._ahead.record_accepted(state, n_rows)
        return True

    def last_read(self, state: State, features: Any, row: int) -> FeatureRows:
        """Return the hidden state (1, D) of `row`, the last that `launch_ahead` has read; valid until the next launch."""
        if self._chain.last_hidden is None:
            return FeatureRows.parts_of(features, [[row]])[0]
        assert self._ahead is not None, "`record_accepted` returned True"
        i = [request.state for request in self._ahead.requests].index(state)
        return FeatureRows.parts_of(self._chain.last_hidden, [[i]])[0]

    def launch_ahead(
        self, device_requests: Sequence[DraftRequest[State]], order: Sequence[int], taken: Sequence[int] = ()
    ) -> bool:
        """See `DeviceDrafter.launch_ahead`."""
        target, states = self._target, [request.state for request in device_requests]
        depth = max(request.n_draft for request in device_requests)
        if target.latest is None or not can_launch_ahead(target, device_requests, order):
            return False
        if len(device_requests) > SEQUENCES or depth > MOST:
            return False
        features = self.features_of(target.latest)
        rows, sources = most_rows(target, order), self.sources_of(features)
        if sources is None:
            return False
        try:
            for state in states:
                state.reserve(rows + depth)
        except PoolExhausted:
            return False
        size = self._chain.prepare(rows, device_requests, features=True)
        self._chain.lay(states, sources, device_requests, follows=True)
        self._walk(order, taken)
        self._chain.graphs(size)
        self._ahead = self.latest = DeviceDrafts(self, device_requests, self._chain.out, None).reading(features)
        return True

    def writer(self, batch: DeviceBatch) -> WriteDraft:
        """See `DeviceDrafter.writer`."""
        assert batch is self._target.batch
        return self._write

    def _launch_pass(
        self,
        device_requests: Sequence[DraftRequest[State]],
        unread: Sequence[tuple[Ints, Features]],
        *,
        candidates: bool = False,
    ) -> None:
        self._ahead = self.latest = None
        states = [request.state for request in device_requests]
        depth = max(request.n_draft for request in device_requests)
        if sum(len(tokens) for tokens, _ in unread) > PENDING:
            every = zip(states, unread, strict=True)
            self.read_all([Unread(state, tokens[:-1], hidden[:-1]) for state, (tokens, hidden) in every])
            unread = [(tokens[-1:], hidden[-1:]) for tokens, hidden in unread]
        self._gather([FeatureRows.of(hidden) for _, hidden in unread], self._hidden)
        at = sum(len(tokens) for tokens, _ in unread)
        size = self._chain.prepare(at, device_requests, candidates=candidates)
        rows = np.cumsum([0, *(len(tokens) for tokens, _ in unread)]).tolist()
        self._lay(states, [tokens for tokens, _ in unread], rows, depth)
        self._chain.lay(states, [self._hidden], device_requests)
        self._chain.graphs(size)

    def _lay(self, states: Sequence[State], tokens: Sequence[Ints], rows: Sequence[int], depth: int = 0) -> None:
        """Write tokens of some sequences to the host arrays and mark them as read; their hidden rows begin at `rows`."""
        host, at = self._chain.arrays.host, 0
        host.counts[:] = sum(map(len, tokens)), len(states)
        for i, (state, some, row) in enumerate(zip(states, tokens, rows, strict=False)):
            n = len(some)
            state.reserve(n + depth)
            part, order = slice(at, at + n), np.arange(n, dtype=np.int32)
            host.row_starts[i], host.row_starts[i + 1], host.last[i] = at, at + n, at + n - 1
            host.sequence[part], host.length[i] = i, state.length
            host.parent[part], host.depth[part] = order - 1, order
            host.position[part], host.row[part], host.token[part] = state.length + order, row + order, some
            state.mark_read(order - 1, prefill=True)
            host.next[:, i] = state.length + np.arange(MOST)
            at += n
