"""Heads of one block that draft token after token, each from the hidden state of the one before: MTP and EAGLE-3."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, Generic, Literal, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.cpu.jit import use_threads
from dflash.kernels.formats import Matrix
from dflash.kernels.joined import MAX_ROWS
from dflash.kernels.kv_types import drafter_kv
from dflash.kernels.sample import SampleParams
from dflash.model.batch import Span, ragged
from dflash.model.candidates import Candidates, fill
from dflash.model.config import Config
from dflash.model.draft.vocabulary import Vocabulary
from dflash.model.head import Head
from dflash.model.model import Model
from dflash.model.network.heads import HeadNetwork
from dflash.model.run.cpu import Batch, Host
from dflash.model.run.joined import HostPass
from dflash.model.run.memory import Memory
from dflash.model.state.pools import Pools
from dflash.model.state.sequence_state import State
from dflash.model.weights import HostTensors

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Rows = slice | Sequence[int]

F = TypeVar("F")
"""Features of some positions: an array on the CPU, `FeatureRows` on a GPU."""

_FEW = 8
"""Unread tokens of a sequence that are read in the pass that drafts."""


class Unread(NamedTuple, Generic[F]):
    """Next tokens (m,) of a sequence, with the target's features (m, F) of the positions before them."""

    state: State
    tokens: Ints
    features: F


def packed(items: Sequence[Unread[F]], rows: int, sequences: int) -> Iterator[list[Unread[F]]]:
    """Divide tokens among passes of at most `rows` tokens of `sequences` sequences."""
    part, room = list[Unread[F]](), rows
    for state, tokens, features in items:
        start, values = 0, cast(Any, features)
        while start < len(tokens):
            some = slice(start, start + room)
            part.append(Unread(state, tokens[some], values[some]))
            start, room = some.stop, room - len(part[-1].tokens)
            if not room or len(part) == sequences:
                yield part
                part, room = [], rows
    if part:
        yield part


class HeadRequest(NamedTuple):
    """Request for candidates of one sequence.

    tokens: int32 (m,); unread tokens, up to the last token of the sequence; at least one.
    features: float32 (m, F); the target's features at the position before each token, see `RecurrentHead.features_of`.
    position: position of the first draft token in the sequence.
    draft_vocab: index of a smaller draft vocabulary; see `dflash.model.draft.request.DraftRequest`.
    """

    state: State
    tokens: Ints
    features: Floats
    n_draft: int
    params: SampleParams
    position: int
    n_candidates: int
    draft_vocab: int | None = None


class RecurrentHead:
    """Reads the tokens of a sequence, shifted by one, with the target's features, then drafts from its own hidden states.

    Position j of a sequence in the head is made from token j + 1 and the target's features at position j. Positions read for
    draft tokens are removed after each proposal, so that the cache holds only positions made from the target's features.

    model: the target, whose threads the head shares.
    networks: network that drafts, and network that only appends keys and values.
    draft_vocabs: empty: only a head on a GPU has smaller draft vocabularies.
    """

    device: Literal["cpu"] = "cpu"
    draft_vocabs: tuple[Vocabulary, ...] = ()
    target_layer_ids: tuple[int, ...] = ()

    def __init__(
        self,
        model: Model,
        config: Config,
        tensors: HostTensors,
        output: Matrix,
        networks: tuple[HeadNetwork, HeadNetwork],
        *,
        known: Vocabulary,
        n_features: int,
    ) -> None:
        self.threads, self.rows, self.n_features = model.threads, model.max_rows, n_features
        slots = model.pools.slots
        # one more page per slot than the target: snapshots copy the last, partly filled page of a sequence
        self.pools = Pools(config, pages=model.pools.pages + slots, slots=slots, kv=drafter_kv(model.pools.kv))
        self._head, self._targets = Head(output, slots, known.parts), known.targets
        memory = Memory.of(config, self.pools)

        def bound(network: HeadNetwork) -> tuple[HostPass, Floats, Floats, Floats]:
            host = Host(network.program, tensors, memory, self.rows, eps=config.norm_eps, experts=config)
            return HostPass(network.program, host), host[network.given], host[network.normed], host[network.hidden]

        self._draft, self._append = map(bound, networks)

    def state(self) -> State:
        """Begin a sequence; see `TargetModel.state`."""
        return State(self.pools, nothing_to_flush)

    def features_of(self, out: Any) -> Any:
        """Return the target's features in a `Forward`: outputs by layer, or of its last norm if the head names no layer."""
        return out.captured if self.target_layer_ids else out.hidden

    def join(self, parts: Sequence[Floats]) -> Floats:
        """Concatenate features to one new array (N, F)."""
        return np.concatenate([np.empty((0, self.n_features), np.float32), *parts])

    def features_at(self, features: Any, rows: Sequence[Rows], *, prompt: bool) -> list[Floats]:  # noqa: ARG002
        """Return rows of the target's features for several sequences, valid until the next forward; see `features_of`.

        prompt: True if they are rows of prompts.
        """
        return [features[each] for each in rows]

    def copies(self, parts: Sequence[Floats]) -> list[Floats]:
        """Return copies of features that stay valid."""
        return [part.copy() for part in parts]

    def to_array(self, features: Floats) -> Floats:
        """Return features as one array of their own (N, F), from which `from_array` returns them."""
        return features.copy()

    def from_array(self, array: Floats) -> Floats:
        """Return features in an array, which must not change."""
        return array

    def record_accepted(self, state: State, features: Any, n_rows: int) -> bool:  # noqa: ARG002
        """Record that `n_rows` rows were accepted; return True if the head has read them already, never on the CPU."""
        return False

    def last_read(self, state: State, features: Any, row: int) -> Floats:  # noqa: ARG002
        """Return the features (1, F) of a row that the head has read ahead; never called on the CPU."""
        raise AssertionError("`record_accepted` returned False")

    def read_all(self, items: Sequence[Unread[Floats]]) -> None:
        """Read the next tokens of several sequences, packed into as few passes as possible.

        Only keys and values are computed: later tokens need nothing else. Raises PoolExhausted if there are not enough pages
        for the tokens.
        """
        for part in packed(items, self.rows, len(items)):
            states, tokens, features = zip(*part, strict=True)
            self._run(states, tokens, self._project(np.concatenate(features)), drafts=False)

    def propose(self, requests: Sequence[HeadRequest]) -> list[Candidates]:
        """Read the unread tokens of some sequences and find candidates for the tokens after them.

        Each further position is drafted from the first candidate of the position before.

        Returns: `n_draft` positions of `n_candidates` for each request.
        """
        requests = [self._shortened(request) for request in requests]
        states = [request.state for request in requests]
        features = np.concatenate([request.features for request in requests])
        normed, h = self._run(states, [request.tokens for request in requests], self._project(features))
        last = np.cumsum([len(request.tokens) for request in requests]) - 1
        normed, h = normed[last], h[last]
        read = [state.length for state in states]
        found = [Candidates.nothing(request.n_draft, request.n_candidates) for request in requests]
        going = list(range(len(requests)))
        try:
            for depth in range(max(request.n_draft for request in requests)):
                self._fill([found[a] for a in going], [requests[a] for a in going], normed, depth)
                stay = [i for i, a in enumerate(going) if requests[a].n_draft > depth + 1 and found[a].ids[depth, 0] >= 0]
                if not stay:
                    break
                going, h = [going[i] for i in stay], h[stay]
                normed, h = self._run([states[a] for a in going], [found[a].ids[depth, :1] for a in going], h)
        finally:
            for state, length in zip(states, read, strict=True):
                state.cut(length)
        return found

    def compile(self) -> None:
        """Run one proposal on dummy data, so that kernels are compiled; no other thread may use the head meanwhile."""
        with closing(self.state()) as state:
            tokens, features = np.zeros(2, np.int32), np.zeros((2, self.n_features), np.float32)
            self.propose([HeadRequest(state, tokens, features, 2, SampleParams(), position=3, n_candidates=1)])

    def _shortened(self, request: HeadRequest) -> HeadRequest:
        """Read all unread tokens but the last if there are many."""
        if len(request.tokens) <= _FEW:
            return request
        self.read_all([Unread(request.state, request.tokens[:-1], request.features[:-1])])
        return request._replace(tokens=request.tokens[-1:], features=request.features[-1:])

    def _fill(self, found: list[Candidates], requests: list[HeadRequest], normed: Floats, depth: int) -> None:
        """Find the candidates of position `depth` from the rows `normed` (n, D) of the position before."""
        self._head.rows(len(requests))[:] = normed
        row_params, first = [request.params for request in requests], [request.position for request in requests]
        fill(found, depth, self._head(len(requests)), row_params, first, targets=self._targets)

    def _project(self, features: Floats) -> Floats:
        """Return the hidden states (N, D) that features (N, F) of the target stand for; valid until the next call."""
        return features

    def _run(
        self, states: Sequence[State], tokens: Sequence[Ints], hidden: Floats, *, drafts: bool = True
    ) -> tuple[Floats, Floats]:
        """Read tokens of some sequences, N in all, with hidden states (N, D) of the positions before them.

        Returns, valid until the next call and only with `drafts`: rows for the LM head (N, D), and the head's own hidden
        states (N, D).
        """
        spans = [Span.chain(s, t, prefill=True) for s, t in zip(states, tokens, strict=True)]
        for span in spans:
            span.state.reserve(len(span.tokens))
        batch, n = Batch(*ragged(spans)), len(hidden)
        use_threads(self.threads)
        run, given, normed, own = self._draft if drafts else self._append
        given[:n] = hidden
        (run.joined if drafts and n <= MAX_ROWS else run)(batch, n)
        for span in spans:
            span.state.mark_read(span.parents, prefill=True)
        return normed[:n], own[:n]


def nothing_to_flush(slot: int, accepted: Sequence[int], buffer: int) -> None:
    """Do nothing: a block of full attention has no recurrent state."""
