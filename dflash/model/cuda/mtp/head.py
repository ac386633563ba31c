"""The MTP head of a model on a GPU, with the interface of `dflash.model.mtp.MtpHead` and drafts that stay on the device."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import product
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from dflash.errors import PoolExhausted
from dflash.kernels.arrays import GpuArray
from dflash.kernels.gpu import device, jit
from dflash.kernels.gpu.batch import DeviceBatch
from dflash.kernels.gpu.staging import Staging
from dflash.kernels.kv_types import drafter_kv
from dflash.kernels.ragged import PAGE, PENDING
from dflash.kernels.sample import SampleParams
from dflash.kernels.sample.candidates import POOL
from dflash.kernels.tree.cuda import SEQUENCES, AcceptPath, WriteDraft
from dflash.model.candidates import Candidates
from dflash.model.config import Config
from dflash.model.cuda.device_drafts import DeviceDrafts, can_launch_ahead, most_rows
from dflash.model.cuda.model import DeviceModel
from dflash.model.cuda.mtp.block import MtpContext
from dflash.model.cuda.mtp.draft_loop import MOST, DraftLoop
from dflash.model.cuda.pool_backend import DEVICE
from dflash.model.cuda.weights import DeviceWeights
from dflash.model.draft.request import DeviceDraftRequest
from dflash.model.draft.vocabulary import Vocabulary
from dflash.model.gguf.file import GGUFFile
from dflash.model.recurrent_head import HeadRequest, nothing_to_flush
from dflash.model.state.pools import Pools
from dflash.model.state.sequence_state import State
from dflash.model.weights import Weights

Ints = NDArray[np.int32]
Unread = tuple[Ints, Any]
"""Unread tokens (m,) of a sequence, and the trunk's hidden states (m, D) of the positions before them."""


class DeviceMtpHead:
    """MTP head on the GPU of its trunk: reads the trunk's tokens, shifted by one, then drafts from its own states.

    model: the trunk.
    weights: weights of the block.
    config: configuration of the file that holds the block.
    file: the file that holds the block, if it is not the trunk's; closed with the head.
    known: draft vocabulary.
    common: smaller draft vocabularies, from fewer to more tokens.
    pools: see `MtpHead`.
    latest: the drafts that the device memory holds now.
    draft_vocabs: `common`.
    """

    device: Literal["cuda"] = "cuda"
    target_layer_ids: tuple[int, ...] = ()

    def __init__(
        self,
        model: DeviceModel,
        weights: DeviceWeights | Weights,
        config: Config,
        file: GGUFFile | None = None,
        *,
        known: Vocabulary,
        common: Sequence[Vocabulary] = (),
    ) -> None:
        self.config = config = replace(config, n_layers=1, recurrent=(False,))
        self.n_features = config.width
        self._target, self._file, self.draft_vocabs = model, file, common
        slots, host = model.pools.slots, weights.host if isinstance(weights, DeviceWeights) else weights
        # two more pages for each slot: a snapshot's copy of a last page, and draft tokens beyond the end of a text
        kv = drafter_kv(model.pools.kv)
        self.pools = Pools(config, pages=model.pools.pages + 2 * slots, slots=slots, kv=kv, backend=DEVICE)
        with device.device_errors("the MTP head"), Staging(model.threads) as staging:
            own, theirs = DeviceWeights(host, staging), model.weights
            output = "token_embd.weight" if model.config.tied else "output.weight"
            embedding, head = (
                own.matrix(name) if name in host else theirs.matrix(shared)
                for name, shared in (
                    ("nextn.embed_tokens.weight", "token_embd.weight"),
                    ("nextn.shared_head_head.weight", output),
                )
            )
            norm = "nextn.shared_head_norm.weight"
            last = own.vector(norm) if norm in host else theirs.vector("output_norm.weight")
            pages = -(-(model.config.context + 3 * PENDING) // PAGE)
            context = MtpContext(own, config, self.pools, embedding, head, last, known, common, model.scratch())
            self._chain = DraftLoop(context, pages)
        self.weights = own
        arrays, out = self._chain.arrays, self._chain.out
        self._walk = AcceptPath(model.batch, model.sampled_ids, arrays, out, rows=MOST, position=arrays.next)
        self._plant = WriteDraft(out, model.batch)
        self._hidden = device.empty(PENDING, config.width)
        self._shelves: WeakKeyDictionary[State, Any] = WeakKeyDictionary()
        self._ahead: DeviceDrafts | None = None
        self.latest: DeviceDrafts | None = None
        jit.warm()

    def warm(self, depth: int) -> Iterator[None]:
        """Capture passes of the trunk and of the head for one sequence; each step of the iterator captures one."""
        depth = min(depth, MOST)
        with closing(self.state()) as state:
            self._target.prepare([1 + depth])
            yield
            for rows, some in product((1, 1 + depth), (None, *range(len(self.draft_vocabs)))):
                self._chain.prepare(rows, [DeviceDraftRequest(state, SampleParams(), depth, 1, depth, some)])
                yield

    def state(self) -> State:
        """Begin a sequence; see `MtpHead.state`."""
        return State(self.pools, nothing_to_flush)

    def features_of(self, out: Any) -> Any:
        """Return the trunk's hidden states in a `Forward`; see `RecurrentHead.features_of`."""
        return out.hidden

    def join(self, parts: Sequence[Any]) -> Any:
        """Concatenate hidden states to one new array (N, D)."""
        out, at = device.empty(sum(map(len, parts)), self.config.width), 0
        for part in parts:
            if len(part):
                out[at : at + len(part)] = part
            at += len(part)
        return out

    def extended(self, state: State, unread: GpuArray, hidden: GpuArray, rows: slice | Sequence[int]) -> Any:
        """Return the unread hidden states of a sequence with `rows` of `hidden` appended; valid until the next call.

        Rows are appended in place to a buffer of the sequence while it has room.
        """
        found = range(len(hidden))[rows] if isinstance(rows, slice) else rows
        if found[-1] - found[0] != len(found) - 1:
            return self.join([unread, hidden[rows]])
        shelf, n = self._shelves.get(state), len(unread)
        if shelf is None or (n and unread.data.ptr != shelf.data.ptr) or n + len(found) > len(shelf):
            shelf = self._shelves[state] = device.empty(2 * PENDING + n + len(found), self.config.width)
            if n:
                device.copy(shelf[:n], unread)
        device.copy(shelf[n : n + len(found)], hidden[found[0] : found[-1] + 1])
        return shelf[: n + len(found)]

    def read(self, state: State, tokens: Ints, hidden: GpuArray) -> None:
        """Read tokens (m,) of a sequence with the trunk's hidden states (m, D) before them; see `MtpHead.read`."""
        for start in range(0, len(tokens), PENDING):
            part = tokens[start : start + PENDING]
            size = self._chain.prepare(len(part))
            self._lay([state], [part], [start])
            self._chain.lay([state], hidden)
            self._chain.run(size)

    def propose(self, requests: Sequence[HeadRequest]) -> list[Candidates]:
        """Read the unread tokens of some sequences and find candidates for the next ones; see `MtpHead.propose`."""
        found: list[Candidates] = []
        for start in range(0, len(requests), SEQUENCES):
            part = requests[start : start + SEQUENCES]
            device_requests = [
                DeviceDraftRequest(request.state, request.params, n := min(request.n_draft, MOST), 1, n, request.draft_vocab)
                for request in part
            ]
            self._guess(device_requests, [(request.tokens, request.features) for request in part], candidates=True)
            with device.device_errors("an MTP head"):
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

        device_requests: requests of the same number of positions.
        anchors: last token of each sequence.
        unread: at least one token each.
        Returns: drafts that the device may still be computing. None if they do not fit one pass.
        """
        if len(device_requests) > SEQUENCES or max(device_request.positions for device_request in device_requests) > MOST:
            return None
        self._guess(device_requests, unread)
        self.latest = DeviceDrafts(self, device_requests, self._chain.out, anchors)
        return self.latest

    def record_accepted(self, state: State, hidden: GpuArray, n_rows: int) -> bool:
        """Record that `n_rows` rows of a sequence were accepted; return True if `launch_ahead` has read them."""
        if self._ahead is None or not self._ahead.awaits(state, hidden):
            return False
        self._ahead.record_accepted(state, n_rows)
        return True

    def launch_ahead(self, device_requests: Sequence[DeviceDraftRequest[State]], order: Sequence[int]) -> bool:
        """See `DeviceDrafter.launch_ahead`."""
        target, states = self._target, [request.state for request in device_requests]
        depth = max(request.positions for request in device_requests)
        if target.latest is None or not can_launch_ahead(target, device_requests, order):
            return False
        if len(device_requests) > SEQUENCES or depth > MOST:
            return False
        rows = most_rows(target, order)
        try:
            for state in states:
                state.reserve(rows + depth)
        except PoolExhausted:
            return False
        size = self._chain.prepare(rows, device_requests)
        hidden = target.latest.hidden
        self._chain.lay(states, hidden, device_requests, follows=True)
        self._walk(order)
        self._chain.run(size)
        self._ahead = self.latest = DeviceDrafts(self, device_requests, self._chain.out, None).reading(hidden)
        return True

    def writer(self, batch: DeviceBatch) -> WriteDraft:
        """See `DeviceDrafter.writer`."""
        assert batch is self._target.batch
        return self._plant

    def close(self) -> None:
        """Close the file if the head has its own."""
        if self._file is not None:
            self._file.close()

    def _guess(
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
        self._chain.lay(states, self._hidden, device_requests)
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
