"""A model on a GPU, with the interface of `dflash.model.model.Model`."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.delta.cuda import Flush
from dflash.kernels.delta.state_copies import MAX_COPIES
from dflash.kernels.gpu import device, jit
from dflash.kernels.gpu.batch import DeviceBatch
from dflash.kernels.gpu.staging import Staging
from dflash.kernels.ragged import PAGE, PENDING, Ragged
from dflash.kernels.sample.cuda import DeviceSampler
from dflash.model.attachments import Attachments
from dflash.model.batch import Forward, Span, check, device_drafts_of, next_rows, ragged
from dflash.model.config import Config
from dflash.model.cuda.gather_outputs import Gather
from dflash.model.cuda.passes import (
    BUCKETS,
    PROMPTS,
    DecodePass,
    Layers,
    PassGraphKey,
    PrefillPass,
    PromptPass,
    StepPass,
    bucket_of,
    rows_of,
)
from dflash.model.cuda.pool_backend import DEVICE
from dflash.model.cuda.scratch_arena import ScratchArena
from dflash.model.cuda.split_passes import grouped
from dflash.model.cuda.weights import DeviceWeights
from dflash.model.draft.request import DraftRequest
from dflash.model.gguf.file import GGUFFile
from dflash.model.protocols.device_drafter import DeviceDrafts
from dflash.model.run.cuda import Launches
from dflash.model.state.pools import Pools
from dflash.model.state.sequence_state import State
from dflash.model.weights import Weights

CHUNK = 2048
"""Default number of prompt tokens in one prefill forward."""

CUT = 64
"""Prompt chunks must begin at multiples of this position; results then have the same bits as without chunks."""


class DeviceModel:
    """Runs tokens of many sequences through the layers of a file, on the GPU.

    Pending rows run in decode passes of at most 64 rows, or 128 if each is the only one of its sequence, each a captured
    graph; prefill spans run in prefill passes.

    file: open; weights are read once and kept on the device, repacked.
    pages, slots: KV pages in all, and sequences that may be open at a time.
    kv: type of stored keys and values, a key of `dflash.kernels.kv_types.KV_TYPES`.
    unpacked_bytes: memory for weights that stay unpacked for prompts.
    attachments: draft models that drafters have loaded for this model.
    device, prefill_chunk, chunk_alignment, can_overlap, max_state_copies: see `Model`.
    latest: result of the last forward; the next forward overwrites it.
    alone: whether the last forward was one decode pass, whose batch and sampled tokens are still on the device.
    device_requests: requests of the draft trees that spans of the last forward read on the device, by index of the span.
    Raises OutOfMemory if weights and memory of sequences do not fit the device.
    """

    device: Literal["cuda"] = "cuda"
    chunk_alignment, can_overlap = CUT, True

    def __init__(
        self,
        file: GGUFFile,
        config: Config,
        *,
        pages: int,
        slots: int,
        kv: str = "f16",
        threads: int = 4,
        chunk: int = CHUNK,
        unpacked_bytes: int = 0,
    ) -> None:
        self.config, self.threads, self.prefill_chunk, self.unpacked_bytes = config, threads, chunk, unpacked_bytes
        self.metadata, self.attachments = file.metadata, Attachments()
        self.max_rows = chunk + config.pending * slots
        self._load(file, pages=pages, slots=slots, kv=kv)
        self._sampler = DeviceSampler(self._decode.logits, position=self._decode.batch.position)
        self._gather, self._gather_behind = Gather(config, self._decode), Gather(config, self._decode)
        self.latest: Forward | None = None
        self.alone = False
        self.device_requests: dict[int, DraftRequest[Any]] = {}
        jit.warm()

    def _load(self, file: GGUFFile, *, pages: int, slots: int, kv: str) -> None:
        """Set the pools, the weights and the passes."""
        self.pools = Pools(self.config, pages=pages, slots=slots, kv=kv, backend=DEVICE)
        most = min(pages, -(-self.config.context // PAGE))
        with Staging(self.threads) as staging:
            self.weights = DeviceWeights(Weights(file, self.config), staging)
            self._prefill: PromptPass = PrefillPass(
                self.weights, self.config, self.pools, self.prefill_chunk, most, unpacked_bytes=self.unpacked_bytes
            )
            rows, scratch = rows_of(self.config, slots - 1), self._prefill.scratch
            self._decode: StepPass = DecodePass(self.weights, self.config, self.pools, most, scratch, rows=rows)
        self._flushes = flushes(self.pools)

    @property
    def max_state_copies(self) -> int:
        """See `dflash.model.protocols.target.TargetModel`."""
        return 0 if self._prefill.copies is None else MAX_COPIES

    @property
    def n_vocab(self) -> int:
        """Rows of the embedding; ids are smaller."""
        return self.config.n_vocab

    @property
    def batch(self) -> DeviceBatch:
        """Batch of the last decode pass."""
        return self._decode.batch

    @property
    def sampled_ids(self) -> Any:
        """Tokens sampled last from the rows of a decode pass, int32 (most rows,)."""
        return self._sampler.ids

    @property
    def most_overlapped(self) -> int:
        """Most sequences of `forward_overlapped`."""
        return self._decode.batch.max_rows

    @property
    def launches(self) -> dict[int, int]:
        """Number of kernels and copies of a decode pass, for each captured number of rows."""
        return self._decode.launches

    def scratch(self) -> ScratchArena:
        """Return scratch memory for a draft model.

        Its content lasts until the next launch of the model or of another draft model.
        """
        return self._prefill.scratch.fork()

    def state(self) -> State:
        """Begin a sequence; see `Model.state`."""
        return State(self.pools, self._flush, keeps_rows=True)

    def warm(self) -> None:
        """Compile and capture everything that is otherwise compiled or captured at first use.

        Runs decode passes of all buckets, a tree and a snapshot, then returns temporary memory to the device.
        """
        self.prepare(BUCKETS)
        if self.pools.free_pages > 1:
            self._try_a_tree()
        device.release()

    def _try_a_tree(self) -> None:
        state = self.state()
        try:
            n = min(3, self.config.pending)
            self.forward([Span(state, np.zeros(n, np.int32), np.array([-1, 0, 0], np.int32)[:n])])
            state.commit(sorted({0, n - 1}))
            snapshot = state.snapshot()
            state.close()
            state = self.state()
            state.restore(snapshot)
            snapshot.close()
        finally:
            state.close()

    def prepare(self, sizes: Sequence[int], capture: tuple[int, ...] = (), *, single: bool = False) -> None:
        """Capture decode passes of `sizes` rows of one sequence; results of the last forward on the device are lost.

        single: of as many sequences with one row each instead.
        """
        self.latest, self.alone, self.device_requests = None, False, {}
        longest = 1 if single and self._decode.has_lengths else PENDING
        for size in sizes:
            self._decode.prepare(PassGraphKey(bucket_of(size), not single, capture, logits=True, longest=longest))

    def forward(self, spans: Sequence[Span], *, capture: tuple[int, ...] = ()) -> Forward:
        """Read tokens of one or more sequences, as `Model.forward` does.

        Returns: its arrays are on the device, and may still be being computed.
        Raises RequestError, PoolExhausted, KernelError: see `Model.forward`.

        A pending row has the same bits in every batch. A row of a prefill span has the same bits however the prompt was
        chunked at multiples of `CUT`; these differ from the bits of the same row in a decode pass.
        """
        return self._forward(spans, capture, self._gather)

    def forward_before(self, spans: Sequence[Span], *, capture: tuple[int, ...] = ()) -> Forward:
        """See `dflash.model.protocols.target.OverlappingModel`: the results are copied from the arrays of the passes."""
        return self._forward(spans, capture, self._gather, copies=True)

    def forward_behind(self, spans: Sequence[Span], *, capture: tuple[int, ...] = ()) -> Forward:
        """See `dflash.model.protocols.target.OverlappingModel`."""
        return self._forward(spans, capture, self._gather_behind)

    def _forward(self, spans: Sequence[Span], capture: tuple[int, ...], gather: Gather, *, copies: bool = False) -> Forward:
        check(spans, capture, self.config, self.max_rows)
        groups = grouped(spans, self.prefill_chunk, PROMPTS, self._decode.batch.max_rows)
        alone = not copies and len(groups) == 1 and not (spans[0].prefill and any(span.logits for span in spans))
        self.alone = alone and not spans[0].prefill
        device_drafts = device_drafts_of(spans) if self.alone else {}
        requests = {i: drafts.requests[k] for drafts, order in device_drafts.items() for k, i in enumerate(order) if i >= 0}
        self.device_requests = requests
        spans = [span if i in requests else span.resolved() for i, span in enumerate(spans)]
        laid = [ragged([spans[i] for i in group]) for group in groups]
        for group, (tokens, _, rows) in zip(groups, laid, strict=True):
            layers = self._run([spans[i] for i in group], tokens, rows, capture, device_drafts)
            if not alone:
                gather.take(spans, group, layers, capture)
        for span in spans:
            span.state.mark_read(span.row_parents, prefill=span.prefill)
        if alone:
            n, n_logits = len(laid[0][0]), sum(len(span.tokens) for span in spans if span.logits)
            captured = {layer: layers.captured[layer][:n] for layer in capture}
            self.latest = Forward(self._sampler.rows(n_logits), layers.space.hidden[:n], captured, tuple(spans))
        else:
            self.latest = gather.forward(spans, capture)
        return self.latest

    def forward_overlapped(self, spans: Sequence[Span], *, capture: tuple[int, ...] = ()) -> Forward:
        """Read one more token of each sequence: the token that is being sampled from its row of the last forward.

        spans: spans of the last forward, at most `most_overlapped`, each of one pending row; some may be left out. Nothing
            was committed since.
        Returns: results by these spans. The states do not record this forward: call `mark_read` once the previous row is
            committed.
        """
        n = len(spans)
        for span in spans:
            span.state.reserve(2)
        self._decode(self._sampled(spans), next_rows(spans), capture, logits=True)
        self.alone, self.device_requests = True, {}
        layers = self._decode.layers
        captured = {layer: layers.captured[layer][:n] for layer in capture}
        self.latest = Forward(self._sampler.rows(n), layers.space.hidden[:n], captured, tuple(spans))
        return self.latest

    def _sampled(self, spans: Sequence[Span]) -> Any:
        """Return the tokens that are being sampled from rows of the last forward, int32 (N,)."""
        assert self.latest is not None, "its rows are read"
        if len(spans) == len(self.latest.spans):
            return self.sampled_ids[: len(spans)]
        states, found = {id(span.state) for span in spans}, device.empty(len(spans), dtype=np.int32)
        rows = np.flatnonzero([id(span.state) in states for span in self.latest.spans])
        for run in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(rows) > 1) + 1):
            device.copy(found[run[0] : run[-1] + 1], self.sampled_ids[rows[run[0]] : rows[run[-1]] + 1])
        return found

    def made(self, n_rows: int) -> Launches:
        """Return the launches of a decode pass, or of a prefill pass for more than 64 rows, on the first GPU."""
        return (self._decode if n_rows <= PENDING else self._prefill).layers.made

    def finish(self) -> None:
        """Wait for all launched work.

        Raises KernelError if a kernel has failed.
        """
        device.synchronize()

    def _run(
        self,
        spans: Sequence[Span],
        tokens: NDArray[np.int32],
        rows: Ragged,
        capture: tuple[int, ...],
        device_drafts: Mapping[DeviceDrafts, Sequence[int]],
    ) -> Layers:
        if spans[0].prefill:
            if self._prefill.copies is not None:
                self._prefill.copies.set([(i, copy) for i, span in enumerate(spans) for copy in span.copies])
            self._prefill(tokens, rows, capture)
            return self._prefill.layers

        def write_drafts() -> None:
            for drafts, order in device_drafts.items():
                drafts.writer(self.batch)(order)

        self._decode(tokens, rows, capture, logits=any(span.logits for span in spans), amend=write_drafts)
        return self._decode.layers

    def _flush(self, slot: int, accepted: Sequence[int], buffer: int) -> None:
        """Apply the accepted rows `accepted` of one slot to the recurrent state of all layers."""
        none, one = np.zeros(0, np.int32), np.zeros(1, np.int32)
        rows = np.zeros((1, PENDING), np.int32)
        rows[0, : len(accepted)] = accepted
        batch = Ragged(
            row_starts=np.zeros(2, np.int32),
            sequence=none,
            parent=none,
            depth=none,
            length=one,
            pages=one[None],
            slot=one + slot,
            prefill=one,
            accepted=rows,
            n_accepted=one + len(accepted),
            buffer=one + buffer,
        )
        for settling, apply_accepted in self._flushes:
            with device.holding(settling.counts):
                settling.upload(none, batch)
                apply_accepted()


def flushes(pools: Pools) -> list[tuple[DeviceBatch, Flush]]:
    """Return a batch of one sequence and the launch that applies its accepted rows; nothing without recurrent layers."""
    memories, batch = list(zip(pools.conv, pools.delta, strict=True)), DeviceBatch(1, 1, 1)
    return [(batch, Flush(memories, batch))] if memories else []
