"""Heads on a GPU that draft from their own hidden states: what MTP and EAGLE-3 heads share."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import product
from typing import Any, Literal
from weakref import WeakKeyDictionary

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
from dflash.model.cuda.device_drafts import DeviceDrafts, can_launch_ahead, most_rows
from dflash.model.cuda.heads.draft_loop import MOST, DraftLoop, HeadContext
from dflash.model.cuda.model import DeviceModel
from dflash.model.cuda.pool_backend import DEVICE
from dflash.model.draft.request import DeviceDraftRequest
from dflash.model.draft.vocabulary import Vocabulary
from dflash.model.recurrent_head import HeadRequest, nothing_to_flush
from dflash.model.state.pools import Pools
from dflash.model.state.sequence_state import State

Ints = NDArray[np.int32]
Unread = tuple[Ints, Any]
"""Unread tokens (m,) of a sequence, and hidden states (m, D) of the positions before them, from the target's features."""


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
        self._shelves: WeakKeyDictionary[State, Any] = WeakKeyDictionary()
        self._ahead: DeviceDrafts | None = None
        self.latest: DeviceDrafts | None = None

    def bind(self, context: HeadContext) -> None:
        """Make the launches. Called once, when the weights are on the device."""
        model = self._target
        self._chain = DraftLoop(context, -(-(model.config.context + 3 * PENDING) // PAGE))
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
                request = DeviceDraftRequest(state, SampleParams(), depth, 1, depth, some)
                self._chain.prepare(rows, [request], features=True)
                yield

    def state(self) -> State:
        """Begin a sequence; see `RecurrentHead.state`."""
        return State(self.pools, nothing_to_flush)

    def features_of(self, out: Any) -> Any:
        """Return the target's features in a `Forward`; see `RecurrentHead.features_of`."""
        return out.hidden

    def sources_of(self, features: Any) -> Sequence[GpuArray] | None:
        """Return the arrays that hold features of the target; None if the forward did not capture them."""
        return [features]

    def join(self, parts: Sequence[Any]) -> Any:
        """Concatenate hidden states to one new array (N, D)."""
        out, at = device.empty(sum(map(len, parts)), self.n_features), 0
        for part in parts:
            if len(part):
                out[at : at + len(part)] = part
            at += len(part)
        return out

    def extended(self, state: State, unread: GpuArray, features: Any, rows: slice | Sequence[int]) -> Any:
        """Return the unread hidden states of a sequence with those of `rows` appended; valid until the next call.

        Rows are appended in place to a buffer of the sequence while it has room.
        """
        found = range(len(features))[rows] if isinstance(rows, slice) else rows
        if found[-1] - found[0] != len(found) - 1:
            return self.join([unread, features[rows]])
        shelf = self.shelf(state, unread, len(found))
        device.copy(shelf[len(unread) :], features[found[0] : found[-1] + 1])
        return shelf

    def shelf(self, state: State, unread: GpuArray, n_more: int) -> GpuArray:
        """Return an array of the unread hidden states of a sequence and `n_more` rows to be written."""
        shelf, n = self._shelves.get(state), len(unread)
        if shelf is None or (n and unread.data.ptr != shelf.data.ptr) or n + n_more > len(shelf):
            shelf = self._shelves[state] = device.empty(2 * PENDING + n + n_more, self.n_features)
            if n:
                device.copy(shelf[:n], unread)
        return shelf[: n + n_more]

    def read(self, state: State, tokens: Ints, hidden: GpuArray) -> None:
        """Read tokens (m,) of a sequence with hidden states (m, D) before them; see `RecurrentHead.read`."""
        for start in range(0, len(tokens), PENDING):
            part = tokens[start : start + PENDING]
            size = self._chain.prepare(len(part))
            self._lay([state], [part], [start])
            self._chain.lay([state], [hidden])
            self._chain.run(size)

    def propose(self, requests: Sequence[HeadRequest]) -> list[Candidates]:
        """Read the unread tokens of some sequences and find candidates for the next ones; see `RecurrentHead.propose`."""
        found: list[Candidates] = []
        for start in range(0, len(requests), SEQUENCES):
            part = requests[start : start + SEQUENCES]
            device_requests = [
                DeviceDraftRequest(request.state, request.params, n := min(request.n_draft, MOST), 1, n, request.draft_vocab)
                for request in part
            ]
            self._launch_pass(device_requests, [(request.tokens, request.features) for request in part], candidates=True)
            with device.device_errors("a head"):
                ids, scores = (array.get().reshape(MOST, SEQUENCES, POOL) for array in (self._chain.ids, self._chain.scores))
            for i, request in enumerate(part):
                rows, width = slice(min(request.n_draft, MOST)), slice(request.n_candidates)
                found.append(Candidates(ids[rows, i, width], scores[rows, i, width]))
        return found

    def ready(self, device_requests: Sequence[DeviceDraftRequest[State]], anchors: Sequence[int]) -> DeviceDrafts | None:
        """Return the drafts that `launch_ahead` has launched if they answer these requests at these roots, else None."""
        ahead, self._ahead = self._ahead, None
        return ahead if ahead is not None and ahead.matches(device_requests, anchors) else None

    def draft_on_device(
        self, device_requests: Sequence[DeviceDraftRequest[State]], anchors: Sequence[int], unread: Sequence[Unread]
    ) -> DeviceDrafts | None:
        """Read the unread tokens of some sequences and draft trees that stay on the device.

        Returns: drafts that the device may still be computing. None if they do not fit one pass.
        """
        if len(device_requests) > SEQUENCES or max(device_request.positions for device_request in device_requests) > MOST:
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

    def last_read(self, state: State, features: Any, row: int) -> GpuArray:
        """Return the hidden state (1, D) of `row`, the last that `launch_ahead` has read; valid until the next launch."""
        if self._chain.last_hidden is None:
            return features[row : row + 1]
        assert self._ahead is not None, "`record_accepted` returned True"
        i = [request.state for request in self._ahead.requests].index(state)
        return self._chain.last_hidden[i : i + 1]

    def launch_ahead(self, device_requests: Sequence[DeviceDraftRequest[State]], order: Sequence[int]) -> bool:
        """See `DeviceDrafter.launch_ahead`."""
        target, states = self._target, [request.state for request in device_requests]
        depth = max(request.positions for request in device_requests)
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
        self._walk(order)
        self._chain.run(size)
        self._ahead = self.latest = DeviceDrafts(self, device_requests, self._chain.out, None).reading(features)
        return True

    def writer(self, batch: DeviceBatch) -> WriteDraft:
        """See `DeviceDrafter.writer`."""
        assert batch is self._target.batch
        return self._write

    def _launch_pass(
        self, device_requests: Sequence[DeviceDraftRequest[State]], unread: Sequence[Unread], *, candidates: bool = False
    ) -> None:
        self._ahead = self.latest = None
        unread, states = list(unread), [request.state for request in device_requests]
        depth = max(request.positions for request in device_requests)
        if sum(len(tokens) for tokens, _ in unread) > PENDING:
            for i, (state, (tokens, hidden)) in enumerate(zip(states, unread, strict=True)):
                self.read(state, tokens[:-1], hidden[:-1])
                unread[i] = tokens[-1:], hidden[-1:]
        at = 0
        for _, hidden in unread:
            device.copy(self._hidden[at : at + len(hidden)], hidden)
            at += len(hidden)
        size = self._chain.prepare(at, device_requests, candidates=candidates)
        rows = np.cumsum([0, *(len(tokens) for tokens, _ in unread)]).tolist()
        self._lay(states, [tokens for tokens, _ in unread], rows, depth)
        self._chain.lay(states, [self._hidden], device_requests)
        self._chain.run(size)

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
