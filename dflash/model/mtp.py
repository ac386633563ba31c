"""The MTP head of a model (NextN): one more block, which predicts the token after the next."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.arrays import empty
from dflash.kernels.cpu.jit import use_threads
from dflash.kernels.embed import embed
from dflash.kernels.formats import Matrix
from dflash.kernels.joined import MAX_ROWS, Joined
from dflash.kernels.kv_types import drafter_kv
from dflash.kernels.linear import PackedLinear
from dflash.kernels.norm import rms_norm
from dflash.kernels.sample import SampleParams
from dflash.model.batch import Span, ragged
from dflash.model.candidates import Candidates, fill
from dflash.model.config import Config
from dflash.model.draft.vocabulary import Vocabulary
from dflash.model.few_rows import divides
from dflash.model.gguf.file import GGUFFile
from dflash.model.head import Head
from dflash.model.layers import Block, FullAttention
from dflash.model.model import Model
from dflash.model.rope import inverse_frequencies, tabulate
from dflash.model.state.pools import Pools
from dflash.model.state.sequence_state import State
from dflash.model.weights import Weights
from dflash.model.workspace import ModelWorkspace

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]


_FEW = 8
"""Unread tokens of a sequence that are read in the pass that drafts."""


class MtpRequest(NamedTuple):
    """Request for candidates of one sequence.

    state: state of the sequence in the head.
    tokens: int32 (m,); unread tokens, up to the last token of the sequence; at least one.
    hidden: float32 (m, D); the trunk's hidden state at the position before each token, from `Forward.hidden`.
    n_draft: tokens to draft.
    params: sampling parameters of the target.
    position: position of the first draft token in the sequence.
    n_candidates: candidates of each position.
    draft_vocab: index of a smaller draft vocabulary; see `dflash.model.draft.request.DraftRequest`.
    """

    state: State
    tokens: Ints
    hidden: Floats
    n_draft: int
    params: SampleParams
    position: int
    n_candidates: int
    draft_vocab: int | None = None


class MtpHead:
    """MTP head of a trunk: reads the trunk's tokens, shifted by one, then drafts from its own hidden states.

    model: the trunk, whose embedding, LM head, rotary frequencies and threads the head shares.
    weights: weights of the block.
    config: configuration of the file that holds the block.
    file: the file that holds the block, if it is not the trunk's; closed with the head.
    pools: keys and values of the block; position j of a sequence is made from token j + 1 and the trunk's hidden state j.
    draft_vocabs: empty: only a head on a GPU has smaller draft vocabularies.

    ``x = eh_proj [rms(embedding(token)); rms(hidden)]``, then a block of full attention, then ``h = rms(x)``; ``head h`` are
    the logits of the next token. For further draft tokens, `h` replaces the trunk's hidden state. Positions read in this way
    are removed after each proposal, so that the cache holds only positions made from the trunk's hidden states.
    """

    device: Literal["cpu"] = "cpu"
    draft_vocabs: tuple[Vocabulary, ...] = ()

    def __init__(
        self, model: Model, weights: Weights, config: Config, file: GGUFFile | None = None, *, known: Vocabulary
    ) -> None:
        self.config = config = replace(config, n_layers=1, recurrent=(False,))
        self.threads, self.rows, self._file = model.threads, model.max_rows, file
        slots = model.pools.slots
        # one more page per slot than the trunk: snapshots copy the last, partly filled page of a sequence
        self.pools = Pools(config, pages=model.pools.pages + slots, slots=slots, kv=drafter_kv(model.pools.kv))
        self._space = space = ModelWorkspace(config, self.rows)
        self._joined = empty(self.rows, 2 * config.width)
        self._mixer = mixer = FullAttention(weights, config, space, self.pools.k[0], self.pools.v[0])
        self._block = Block(weights, config, space, mixer, [])
        a = space.all
        self._key_value = PackedLinear(a.normed, mixer.projections[1:], [a.key, a.value], name="mtp keys and values")
        self._eh_proj = PackedLinear(
            self._joined, [weights.matrix("nextn.eh_proj.weight")], [space.all.stream], name="mtp projection"
        )
        self._enorm, self._hnorm = weights.vector("nextn.enorm.weight"), weights.vector("nextn.hnorm.weight")
        own_norm = "nextn.shared_head_norm.weight"
        self._norm = weights.vector(own_norm) if own_norm in weights else model.weights.vector("output_norm.weight")
        self._embedding = _own(weights, "nextn.embed_tokens.weight", model.embedding)
        output = _own(weights, "nextn.shared_head_head.weight", model.output)
        self._few = [self._plan(divided=divided) for divided in (False, True)]
        self._head, self._targets = Head(output, slots, known.parts), known.targets
        self._inv_freq, self._rope_gain = inverse_frequencies(config)

    def state(self) -> State:
        """Begin a sequence; see `TargetModel.state`."""
        return State(self.pools, nothing_to_flush)

    def join(self, parts: Sequence[Floats]) -> Floats:
        """Concatenate hidden states to one new array (N, D)."""
        return np.concatenate([np.empty((0, self.config.width), np.float32), *parts])

    def extended(self, state: State, unread: Floats, hidden: Floats, rows: slice | Sequence[int]) -> Floats:  # noqa: ARG002
        """Return the unread hidden states of a sequence with `rows` of `hidden` appended; valid until the next call."""
        return self.join([unread, hidden[rows]])

    def record_accepted(self, state: State, hidden: Floats, n_rows: int) -> bool:  # noqa: ARG002
        """Record that `n_rows` rows were accepted; return True if the head has read them already, never on the CPU."""
        return False

    def read(self, state: State, tokens: Ints, hidden: Floats) -> None:
        """Read the next tokens (m,) of a sequence with the trunk's hidden states (m, D) of the positions before them.

        Only keys and values are computed: later tokens need nothing else. Raises PoolExhausted if there are not enough pages
        for the tokens.
        """
        for start in range(0, len(tokens), self.rows):
            part = slice(start, start + self.rows)
            self._run([state], [tokens[part]], hidden[part], drafts=False)

    def propose(self, requests: Sequence[MtpRequest]) -> list[Candidates]:
        """Read the unread tokens of some sequences and find candidates for the tokens after them.

        Each further position is drafted from the first candidate of the position before.

        requests: requests with different states.
        Returns: `n_draft` positions of `n_candidates` for each request.
        Raises PoolExhausted if there are not enough pages for the unread tokens or for the draft tokens.
        """
        requests = [self._shortened(request) for request in requests]
        states = [request.state for request in requests]
        h = self._run(
            states, [request.tokens for request in requests], np.concatenate([request.hidden for request in requests])
        )
        h = h[np.cumsum([len(request.tokens) for request in requests]) - 1]
        read = [state.length for state in states]
        found = [Candidates.nothing(request.n_draft, request.n_candidates) for request in requests]
        going = list(range(len(requests)))
        try:
            for depth in range(max(request.n_draft for request in requests)):
                self._fill([found[a] for a in going], [requests[a] for a in going], h, depth)
                stay = [i for i, a in enumerate(going) if requests[a].n_draft > depth + 1 and found[a].ids[depth, 0] >= 0]
                if not stay:
                    break
                going, h = [going[i] for i in stay], h[stay]
                h = self._run([states[a] for a in going], [found[a].ids[depth, :1] for a in going], h)
        finally:
            for state, length in zip(states, read, strict=True):
                state.cut(length)
        return found

    def compile(self) -> None:
        """Run one proposal on dummy data, so that kernels are compiled; no other thread may use the head meanwhile."""
        with closing(self.state()) as state:
            tokens, hidden = np.zeros(2, np.int32), np.zeros((2, self.config.width), np.float32)
            self.propose([MtpRequest(state, tokens, hidden, n_draft=2, params=SampleParams(), position=3, n_candidates=1)])

    def close(self) -> None:
        """Close the file if the head has its own."""
        if self._file is not None:
            self._file.close()

    def _shortened(self, request: MtpRequest) -> MtpRequest:
        """Read all unread tokens but the last if there are many."""
        if len(request.tokens) <= _FEW:
            return request
        self.read(request.state, request.tokens[:-1], request.hidden[:-1])
        return request._replace(tokens=request.tokens[-1:], hidden=request.hidden[-1:])

    def _plan(self, *, divided: bool) -> Joined:
        """Return the ops of few rows after the concatenation; see `FullAttention.join`."""
        joined, a = Joined(self.config.norm_eps), self._space.all
        joined.linear(self._eh_proj)
        self._block.join(joined, divided=divided)
        joined.rms_norm(a.stream, self._norm, a.hidden)
        return joined

    def _fill(self, found: list[Candidates], requests: list[MtpRequest], h: Floats, depth: int) -> None:
        """Find the candidates of position `depth` from hidden states `h` (n, D) of the position before."""
        self._head.rows(len(requests))[:] = h
        row_params, first = [request.params for request in requests], [request.position for request in requests]
        fill(found, depth, self._head(len(requests)), row_params, first, targets=self._targets)

    def _run(self, states: Sequence[State], tokens: Sequence[Ints], hidden: Floats, *, drafts: bool = True) -> Floats:
        """Read tokens of some sequences, N in all, with their hidden states (N, D); return the head's states (N, D).

        Without `drafts`, the result is not valid.
        """
        spans = [Span.chain(s, t, prefill=True) for s, t in zip(states, tokens, strict=True)]
        for span in spans:
            span.state.reserve(len(span.tokens))
        ids, positions, rows = ragged(spans)
        n, width, eps = len(ids), self.config.width, self.config.norm_eps
        use_threads(self.threads)
        s = self._space.first(n)
        embed(ids, self._embedding, s.normed)
        rms_norm(s.normed, self._enorm, eps, out=s.normed)
        self._joined[:n, :width] = s.normed
        rms_norm(hidden, self._hnorm, eps, out=s.normed)
        self._joined[:n, width:] = s.normed
        tabulate(positions, self._inv_freq, self._rope_gain, s)
        if not drafts:
            self._eh_proj(n)
            rms_norm(s.stream, self._block.attn_norm, eps, out=s.normed)
            self._key_value(n)
            self._mixer.append(rows, n)
        elif n <= MAX_ROWS:
            self._few[divides(rows, n)](rows, n)
        else:
            self._eh_proj(n)
            self._block(rows, n)
            rms_norm(s.stream, self._norm, eps, out=s.hidden)
        for span in spans:
            span.state.mark_read(span.parents, prefill=True)
        return s.hidden


def _own(weights: Weights, name: str, shared: Matrix) -> Matrix:
    return weights.matrix(name) if name in weights else shared


def nothing_to_flush(slot: int, accepted: Sequence[int], buffer: int) -> None:
    """Do nothing: a block of full attention has no recurrent state."""
