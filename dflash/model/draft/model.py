"""A block draft model on the CPU."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.block_attention import Blocks
from dflash.kernels.cpu.jit import use_threads
from dflash.kernels.formats import Matrix
from dflash.kernels.sample import SampleParams
from dflash.kernels.soft_cap import soft_cap
from dflash.model.candidates import Candidates
from dflash.model.draft.candidates import chooser
from dflash.model.draft.config import DraftConfig
from dflash.model.draft.context import Context, Rows
from dflash.model.draft.files.source import Source
from dflash.model.draft.request import DraftRequest, check_requests, draft_rows
from dflash.model.draft.state import DraftState, Rings
from dflash.model.draft.vocabulary import Vocabulary
from dflash.model.head import Head
from dflash.model.network.draft import draft
from dflash.model.run.cpu import Batch, Host, rms_norm
from dflash.model.run.joined import HostPass
from dflash.model.run.memory import Memory
from dflash.model.weights import SharedTensors


class Tables(NamedTuple):
    """Embedding and LM head of a draft model: its own, or its target's."""

    embedding: Matrix
    output: Matrix
    n_vocab: int
    vocabulary: Vocabulary


class BlockDraft:
    """Draft model that proposes a block of tokens per pass, for several sequences together.

    source: weights of the same file; they stay packed and mapped.
    size: context positions kept for each sequence; see `dflash.model.draft.state.places`.
    kv: a key of `dflash.kernels.kv_types.KV_TYPES`, not a quantized one: type of stored keys and values.
    trim_block: whether to shorten blocks to the requested length even if a layer is not causal. This is cheaper, and rows
        keep their positions, but they no longer see the mask rows that they were trained with. The demo's draft, which has
        one layer that is not causal, then has 1 % fewer tokens per step on code and 3 % fewer in chats, with 7 draft tokens.
    min_confidence: a DSpark draft ends where the product of its confidences falls below this value.
    draft_vocabs: empty: only draft models on a GPU have smaller draft vocabularies.
    """

    device: Literal["cpu"] = "cpu"
    draft_vocabs: tuple[Vocabulary, ...] = ()

    def __init__(
        self,
        config: DraftConfig,
        source: Source,
        tables: Tables,
        *,
        slots: int,
        size: int,
        kv: str = "f16",
        threads: int,
        trim_block: bool = False,
        min_confidence: float = 0.0,
    ) -> None:
        self.config, self.threads, self.trim_block = config, threads, trim_block
        self._source, self._n_vocab = source, tables.n_vocab
        self._rings = rings = Rings(config, slots, size, kv)
        program, stream = draft(config)
        host = Host(
            program,
            SharedTensors(source, {"token_embd.weight": tables.embedding}),
            Memory.of_rings(rings.k, rings.v),
            slots * config.block,
            eps=config.norm_eps,
        )
        self._run, self._stream = HostPass(program, host), host[stream]
        self._context = Context(source, config, rings)
        self._norm = source.vector("output_norm.weight")
        self._head = Head(tables.output, slots * config.max_draft, tables.vocabulary.parts)
        self._choose = chooser(config, source, tables.vocabulary, slots, min_confidence)
        self._whole = not all(config.causal)

    @property
    def free_slots(self) -> int:
        """Sequences that can still be opened."""
        return self._rings.free

    @property
    def reach(self) -> int:
        """Most positions of a sequence that the context keeps; older positions are overwritten."""
        return self._rings.size

    def state(self, begin: int = 0) -> DraftState:
        """Begin a sequence, of which positions from `begin` on will be read.

        Raises PoolExhausted if every slot is in use.
        """
        return DraftState(self._rings, begin)

    def read(self, state: DraftState, features: Mapping[int, Any], rows: Rows) -> None:
        """Append the next positions of one sequence to its context; see `read_many`."""
        self.read_many([(state, rows)], features)

    def read_many(self, items: Sequence[tuple[DraftState, Rows]], features: Mapping[int, Any]) -> None:
        """Append the next positions of several sequences to their contexts.

        items: accepted rows of the features for each sequence, in the order of its positions.
        features: Mapping of int to float32 (N, D); outputs of the target's layers ``config.target_layer_ids``, such as
            `Forward.captured`. Device arrays are copied to the host.
        """
        use_threads(self.threads)
        self._context.read(items, features)

    def propose(self, requests: Sequence[DraftRequest]) -> list[Candidates]:
        """Find candidates for the tokens after the last one of each sequence.

        requests: requests with different states.
        Returns: for each request, candidates of `n_draft` positions; of fewer if a DSpark draft ends early by its
            confidence.
        Raises RequestError if an anchor is not in the vocabulary, or `n_draft` is out of range.
        Raises KernelError if two requests have the same state, or a state is closed.

        The states do not change. A request has the same result, bit for bit, in every batch.
        """
        if not requests:
            return []
        check_requests(requests, self._n_vocab, self.config.max_draft)
        use_threads(self.threads)
        config, sizes = self.config, [self._n_rows(request) for request in requests]
        blocks = _blocks(requests, sizes)
        n = int(blocks.row_starts[-1])
        tokens = np.full(n, config.mask, np.int32)
        tokens[blocks.row_starts[:-1]] = [request.anchor for request in requests]
        self._run(Batch(tokens, positions(blocks, n), blocks=blocks), n)
        hidden, logits = self._project(self._stream[:n], requests, blocks)
        return self._choose(requests, hidden, logits)

    def compile(self) -> None:
        """Run one proposal on dummy data, so that kernels are compiled; no other thread may use the model meanwhile."""
        with closing(self.state()) as state:
            nothing = np.zeros((2, self.config.width), np.float32)
            self.read(state, dict.fromkeys(self.config.target_layer_ids, nothing), slice(0, 2))
            self.propose([DraftRequest(state, 0, self.config.max_draft, SampleParams())])

    def close(self) -> None:
        """Close the file."""
        self._source.close()

    def _n_rows(self, request: DraftRequest) -> int:
        """Return the rows of a block; if all layers are causal, rows after the last requested one are left out."""
        return self.config.block if self._whole and not self.trim_block else request.n_draft + self.config.lead

    def _project(
        self, stream: NDArray[np.float32], requests: Sequence[DraftRequest], blocks: Blocks
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the draft rows after the final norm, one sequence after another, and their logits."""
        config = self.config
        hidden = self._head.rows(sum(request.n_draft for request in requests))
        for (request, part), start in zip(draft_rows(requests), blocks.row_starts[:-1].tolist(), strict=True):
            first = start + config.lead
            rms_norm(stream[first : first + request.n_draft], self._norm, config.norm_eps, out=hidden[part])
        logits = self._head(len(hidden))
        if config.logit_scale != 1:
            logits *= np.float32(config.logit_scale)
        if config.logit_cap:
            soft_cap(logits, config.logit_cap)
        return hidden, logits


def positions(blocks: Blocks, n: int) -> NDArray[np.int32]:
    """Return the positions of the rows of all blocks."""
    sizes = np.diff(blocks.row_starts)
    return np.arange(n, dtype=np.int32) + np.repeat(blocks.length - blocks.row_starts[:-1], sizes)


def _blocks(requests: Sequence[DraftRequest], sizes: Sequence[int]) -> Blocks:
    where = np.array([(request.state.slot, request.state.begin, request.state.length) for request in requests], np.int32).T
    slot, begin, length = np.ascontiguousarray(where)
    return Blocks(np.array([0, *np.cumsum(sizes)], np.int32), slot, begin, length)
