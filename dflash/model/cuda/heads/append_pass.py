"""The pass of a head over tokens of many sequences: only their keys and values are computed."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from dflash.kernels.gpu.batch import DeviceBatch
from dflash.model.batch import Span, ragged
from dflash.model.cuda.heads.feature_rows import FeatureRows, Gatherer
from dflash.model.cuda.heads.reading import BlockContext
from dflash.model.cuda.ops import Ops, spare_bytes
from dflash.model.network.heads import HeadNetwork
from dflash.model.recurrent_head import Unread, packed
from dflash.model.run.cuda import Device, Launches, steps_of
from dflash.model.run.memory import Memory

ROWS = 1024
"""Most tokens of a pass."""

_SEQUENCES = 64


class AppendPass:
    """Reads tokens of many sequences with the hidden states before them, by the launches of a prefill.

    Rows have the same bits in every batch and in chunks of any size; their rounding differs from that of a draft pass.

    context: parts of the head. The arrays of the pass are in its scratch memory.
    network: the network that only appends keys and values.
    table: name of the embedding.
    pages: most pages of a sequence.
    """

    def __init__(self, context: BlockContext, network: HeadNetwork, table: str, pages: int, gather: Gatherer) -> None:
        weights, config, embedding, pools, scratch = context
        self._batch, self._gather, alloc = DeviceBatch(ROWS, _SEQUENCES, pages), gather, scratch.fork().alloc
        n_keys = config.kv_heads * config.head_size
        singles = {"given": config.width, "embedded": config.width, "stream": config.width}
        singles |= {"attn_k": n_keys, "attn_v": n_keys, "cos": config.n_rot // 2, "sin": config.n_rot // 2}
        halves = dict.fromkeys(("left", "right", "normed"), config.width)
        arrays = {name: alloc(ROWS, width) for name, width in singles.items()}
        arrays |= {name: alloc(ROWS, width, dtype=np.float16) for name, width in halves.items()}
        space = SimpleNamespace(n_rows=ROWS, **arrays)
        n_scratch = 2 * config.width * (max(config.width, 2 * n_keys) + _SPARE)
        config, spare = replace(config, prefill="f16"), spare_bytes()
        ops = Ops(config, self._batch, prefill=True, empty=alloc, n_scratch=n_scratch, unpacked_bytes=spare)
        memory, shared = Memory.of(config, pools), {table: embedding}
        on = Device(ops, weights, space, memory, eps=config.norm_eps, config=config, shared=shared)
        start, (block,), _ = Launches.of(network.program, on)
        self._given, self._steps = space.given, steps_of([*start, *block])

    def __call__(self, items: Sequence[Unread[FeatureRows]]) -> None:
        """Read the tokens of all items in as few passes as possible."""
        for part in packed(items, self._batch.max_rows, self._batch.max_sequences):
            spans = [Span.chain(state, tokens, prefill=True) for state, tokens, _ in part]
            for span in spans:
                span.state.reserve(len(span.tokens))
            tokens, _, rows = ragged(spans)
            self._gather([hidden for *_, hidden in part], self._given)
            self._batch.upload(tokens, rows)
            for step in self._steps:
                step(len(tokens))
            for span in spans:
                span.state.mark_read(span.row_parents, prefill=True)


_SPARE = 256
"""Rows of scratch memory beyond those of the largest weights, which are laid out at multiples of 32."""
