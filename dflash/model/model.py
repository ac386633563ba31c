"""A model: weights, memory, and the forward over both."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dflash.kernels import conv, delta
from dflash.kernels.cpu.jit import use_threads
from dflash.kernels.embed import embed
from dflash.kernels.moe import MoeScratch
from dflash.kernels.norm import rms_norm
from dflash.kernels.profile import profiling
from dflash.kernels.ragged import PENDING, Ragged
from dflash.kernels.soft_cap import soft_cap
from dflash.model.attachments import Attachments
from dflash.model.batch import Forward, Span, check, ragged
from dflash.model.config import Config
from dflash.model.few_rows import FewRows
from dflash.model.gguf.file import GGUFFile
from dflash.model.head import Head
from dflash.model.layered.attention import LayeredAttention
from dflash.model.layered.block import NormedBlock
from dflash.model.layered.per_layer import PerLayerEmbedding
from dflash.model.layers import Block, FullAttention, LinearAttention
from dflash.model.rope import RotaryTables
from dflash.model.state.pools import Pools
from dflash.model.state.sequence_state import State
from dflash.model.weights import Weights
from dflash.model.workspace import ModelWorkspace

Ints = NDArray[np.int32]

CHUNK = 512
"""Default number of prompt tokens in one prefill forward."""

ROWS = 1024
"""Default maximum of rows in a forward."""


class Model:
    """Runs tokens of many sequences through the layers of a file.

    file: open; weights stay packed and memory-mapped.
    config: configuration of the same file.
    pages, slots: KV pages in all, and sequences that may be open at a time.
    kv: ``"f16"`` or ``"f32"``: type of stored keys and values.
    threads: cores to use.
    rows: most rows of a forward.
    embedding, output: embedding and LM head, which draft models may share.
    metadata: metadata of the file.
    attachments: draft models that drafters have loaded for this model.
    prefill_chunk: prompt tokens to read in one forward.
    chunk_alignment: prompt chunks must begin at multiples of this position.
    can_overlap: whether a forward can read tokens that the device is still sampling.
    """

    device: Literal["cpu"] = "cpu"
    prefill_chunk, chunk_alignment, can_overlap = CHUNK, 1, False

    def __init__(
        self, file: GGUFFile, config: Config, *, pages: int, slots: int, kv: str = "f16", threads: int, rows: int = ROWS
    ) -> None:
        self.config, self.threads, self.max_rows = config, threads, rows
        self.metadata, self.attachments = file.metadata, Attachments()
        self.weights = Weights(file, config)
        self.pools = Pools(config, pages=pages, slots=slots, kv=kv)
        self._space = space = ModelWorkspace(config, rows)
        self._blocks = self._build_blocks(space)
        self._output_norm = self.weights.vector("output_norm.weight")
        self.embedding = self.weights.matrix("token_embd.weight")
        self.output = self.embedding if config.tied else self.weights.matrix("output.weight")
        self._head = Head(self.output, rows)
        self._tables = RotaryTables(config, self.weights)
        self._per_layer = PerLayerEmbedding(self.weights, config, space) if config.per_layer else None
        inv_freq = self._tables.plain
        self._is_plain = (
            inv_freq is not None and self.embedding.native and not config.blocks.scaled_embedding and self._per_layer is None
        )
        self._few = FewRows(
            self._blocks,
            space,
            self._output_norm,
            config.norm_eps,
            output=self.output,
            embedding=self.embedding if self._is_plain else None,
            inv_freq=inv_freq if self._is_plain else None,
        )

    def _build_blocks(self, space: ModelWorkspace) -> "list[Block | NormedBlock]":
        config, linear = self.config, 0
        blocks, scratch = list[Block | NormedBlock](), list[MoeScratch]()
        for i, recurrent in enumerate(config.recurrent):
            weights = self.weights.block(i)
            if config.layers:
                cache = self.pools.layer_cache(config.layers[i].source)
                layered = LayeredAttention(weights, config, i, space, cache)
                normed = config.blocks.normed_outputs
                own = space.of_layer(config.layers[i])
                blocks.append(
                    NormedBlock(weights, config, space, layered, scratch)
                    if normed
                    else Block(weights, config, own, layered, scratch)
                )
                continue
            if recurrent:
                memory = self.pools.conv[linear], self.pools.delta[linear]
                mixer: LinearAttention | FullAttention = LinearAttention(weights, config, space, *memory)
                linear += 1
            else:
                mixer = FullAttention(weights, config, space, *self.pools.layer_cache(i))
            blocks.append(Block(weights, config, space, mixer, scratch))
        return blocks

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
        tokens, positions, rows = ragged(spans)
        n = len(tokens)
        use_threads(self.threads)
        s = self._space.first(n)
        few = n <= self._few.most and not profiling() and all(span.logits for span in spans)
        if not few or not self._is_plain:
            self._start(tokens, positions, n)
        if few:
            captured, logits = self._few(rows, n, tokens, positions, capture)
        else:
            captured = self._run_blocks(rows, n, capture)
            rms_norm(s.stream, self._output_norm, self.config.norm_eps, out=s.hidden)
            logits = self._project(spans, rows, s.hidden)
        if self.config.logit_cap:
            soft_cap(logits, self.config.logit_cap)
        if self.config.suppressed:
            logits[:, list(self.config.suppressed)] = -np.inf
        for span in spans:
            span.state.mark_read(span.parents, prefill=span.prefill)
        return Forward(logits, s.hidden, captured, tuple(spans))

    def finish(self) -> None:
        """Wait for launched work; on the CPU a forward has finished when it returns."""

    def warm(self) -> None:
        """Compile and capture what a forward needs; on the CPU kernels are compiled by their first forward."""

    def _start(self, tokens: Ints, positions: Ints, n: int) -> None:
        """Fill the residual stream and the rotary tables of all rows."""
        s = self._space.first(n)
        embed(tokens, self.embedding, s.stream)
        if self.config.blocks.scaled_embedding:
            s.stream *= np.float32(self.config.width**0.5)
        if self._per_layer is not None:
            self._per_layer(tokens, n)
        if not all(self.config.recurrent):
            self._tables(positions, s)

    def _run_blocks(self, rows: Ragged, n: int, capture: tuple[int, ...]) -> dict[int, NDArray[np.float32]]:
        """Run all layers op by op, and return copies of the residual stream after the layers `capture`."""
        s, captured = self._space.first(n), {}
        for i, block in enumerate(self._blocks):
            block(rows, n)
            if i in capture:
                captured[i] = s.stream.copy()
        return captured

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
