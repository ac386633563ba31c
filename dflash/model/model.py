"""A model: weights, memory, and the forward over both."""

import threading
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dflash.kernels import conv, delta
from dflash.kernels.arrays import empty
from dflash.kernels.cpu.jit import use_threads
from dflash.kernels.joined import MAX_ROWS
from dflash.kernels.linear import PackedLinear
from dflash.kernels.profile import profiling
from dflash.kernels.ragged import PENDING, Ragged
from dflash.kernels.soft_cap import soft_cap
from dflash.model.attachments import Attachments
from dflash.model.batch import Forward, Span, check, ragged
from dflash.model.config import Config
from dflash.model.gguf.file import GGUFFile
from dflash.model.head import Head
from dflash.model.network.target import target
from dflash.model.run.cpu import Batch, Host
from dflash.model.run.joined import HostPass
from dflash.model.run.memory import Memory
from dflash.model.state.pools import Pools
from dflash.model.state.sequence_state import State
from dflash.model.weights import Weights

CHUNK = 512
"""Default number of prompt tokens in one prefill forward."""

ROWS = 1024
"""Default maximum of rows in a forward."""


class Model:
    """Runs tokens of many sequences through the layers of a file.

    file: open; weights stay packed and memory-mapped.
    pages, slots: KV pages in all, and sequences that may be open at a time.
    kv: ``"f16"`` or ``"f32"``: type of stored keys and values.
    embedding, output: embedding and LM head, which draft models may share.
    attachments: draft models that drafters have loaded for this model.
    prefill_chunk: prompt tokens to read in one forward.
    chunk_alignment: prompt chunks must begin at multiples of this position.
    unpacked_bytes: memory for weights that stay unpacked for prompts.
    max_state_copies: most copies of states that a forward makes inside of prompts; see `TargetModel`.
    can_overlap: whether a forward can read tokens that the device is still sampling.
    compiled: set unless other processes still compile the kernels that run few rows in few launches; until then, each op
        of a forward has launches of its own, with the same bits.
    """

    device: Literal["cpu"] = "cpu"
    prefill_chunk, chunk_alignment, can_overlap, max_state_copies, unpacked_bytes = CHUNK, 1, False, 0, 0

    def __init__(
        self, file: GGUFFile, config: Config, *, pages: int, slots: int, kv: str = "f16", threads: int, rows: int = ROWS
    ) -> None:
        self.config, self.threads, self.max_rows = config, threads, rows
        self.metadata, self.attachments = file.metadata, Attachments()
        self.weights = Weights(file, config)
        self.pools = Pools(config, pages=pages, slots=slots, kv=kv)
        self.embedding = self.weights.matrix("token_embd.weight")
        self.output = self.embedding if config.tied else self.weights.matrix("output.weight")
        self._head = Head(self.output, rows)
        network = target(config, self.weights)
        memory = Memory.of(config, self.pools)
        host = Host(network.program, self.weights, memory, rows, eps=config.norm_eps, experts=config)
        self._hidden, self._few_rows = host[network.hidden], min(MAX_ROWS, rows)
        self._few_logits = empty(self._few_rows, self.output.shape[0])
        head = PackedLinear(self._hidden[: self._few_rows], [self.output], [self._few_logits], name="head")
        self._run = HostPass(network.program, host, head)
        self.compiled = threading.Event()
        self.compiled.set()

    @property
    def n_vocab(self) -> int:
        """Rows of the embedding; ids are smaller."""
        return self.config.n_vocab

    def state(self) -> State:
        """Begin a sequence; see `TargetModel.state`."""
        return State(self.pools, self._flush)

    def forward(self, spans: Sequence[Span], *, capture: tuple[int, ...] = ()) -> Forward:
        """Read tokens of one or more sequences.

        spans: at most one per sequence and `max_rows` tokens in all; a span that is not `prefill` has at most
            ``config.pending`` tokens.
        capture: layers, counted from 0, whose output to return.
        Raises RequestError if a token is not in the vocabulary, a parent out of order, or a layer does not exist.
        Raises PoolExhausted if there are not enough pages for the tokens.
        Raises KernelError if there are too many rows, a span is empty, or two spans belong to one sequence.

        Results of a token have the same bits in every batch. Rows of decode spans stay pending: see `State.commit`.
        """
        check(spans, capture, self.config, self.max_rows)
        batch = Batch(*ragged(spans))
        n = len(batch.tokens)
        use_threads(self.threads)
        hidden = self._hidden[:n]
        few = n <= self._few_rows and self.compiled.is_set() and not profiling()
        if few and all(span.logits for span in spans):
            captured, logits = self._run.joined(batch, n, capture), self._few_logits[:n]
        else:
            captured = self._run(batch, n, capture)
            logits = self._project(spans, batch.rows, hidden)
        if self.config.logit_cap:
            soft_cap(logits, self.config.logit_cap)
        if self.config.suppressed:
            logits[:, list(self.config.suppressed)] = -np.inf
        for span in spans:
            span.state.mark_read(span.parents, prefill=span.prefill)
        return Forward(logits, hidden, captured, tuple(spans))

    def finish(self) -> None:
        """Wait for launched work; on the CPU a forward has finished when it returns."""

    def warm(self) -> None:
        """Compile and capture what a forward needs; on the CPU kernels are compiled by their first forward."""

    def _project(self, spans: Sequence[Span], rows: Ragged, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the logits of all spans with `logits`."""
        wanted = [slice(*rows.row_starts[i : i + 2]) for i, span in enumerate(spans) if span.logits]
        n = sum(part.stop - part.start for part in wanted)
        space, at = self._head.rows(n), 0
        for part in wanted:
            size = part.stop - part.start
            space[at : at + size] = hidden[part]
            at += size
        return self._head(n)

    def _flush(self, slot: int, accepted: Sequence[int], buffer: int) -> None:
        """Apply the accepted rows `accepted` of one slot to the recurrent state of all layers."""
        one = np.zeros((3, 1), np.int32)
        one[:, 0] = slot, len(accepted), buffer
        rows = np.zeros((1, PENDING), np.int32)
        rows[0, : len(accepted)] = accepted
        for memory in self.pools.conv:
            conv.apply_accepted(one[0], rows, one[1], one[2], memory)
        for delta_memory in self.pools.delta:
            delta.apply_accepted(one[0], rows, one[1], one[2], delta_memory)
