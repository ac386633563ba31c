"""The MTP head of a model (NextN): one more block, which guesses the token after the next."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.arrays import empty
from dflash.kernels.cpu.jit import use_threads
from dflash.kernels.embed import embed
from dflash.kernels.formats import Matrix
from dflash.kernels.linear import PackedLinear
from dflash.kernels.norm import rms_norm
from dflash.kernels.sample import SampleParams
from dflash.model.batch import Span, ragged
from dflash.model.candidates import Candidates, fill
from dflash.model.config import Config
from dflash.model.draft.vocabulary import Vocabulary
from dflash.model.gguf.file import GGUFFile
from dflash.model.head import Head
from dflash.model.layers import Block, FullAttention
from dflash.model.model import Model
from dflash.model.rope import inverse_frequencies, tabulate
from dflash.model.state.pools import Pools
from dflash.model.state.sequence_state import State
from dflash.model.weights import Weights
from dflash.model.workspace import Workspace

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]


class MtpRequest(NamedTuple):
    """What is wanted of the head for one text.

    Parameters
    ----------
    state : State
        What the head has read of it.
    tokens : int32 (m,)
        Not read yet, up to the last token of the text; at least one.
    hidden : float32 (m, D)
        For each of them what the trunk had seen before it: ``Forward.hidden`` of the token above.
    n_draft : int
        Tokens to guess.
    params : SampleParams
        How the target draws them.
    position : int
        Of the first guess in the text.
    n_candidates : int
        Candidates for each.
    draft_vocab : int, optional
        Which common tokens do; see `dflash.model.draft.request.MtpRequest`.
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
    """Reads what the trunk has read, a token ahead of it, and goes on by itself from there.

    Parameters
    ----------
    model : Model
        The trunk, whose table, head, rotation and threads it shares.
    weights : Weights
        Of the block.
    config : Config
        Of the file that holds the block.
    file : GGUFFile, optional
        That one, if it is not the trunk's: to be closed with the head.
    known : Vocabulary
        The tokens that are guessed.

    Attributes
    ----------
    pools : Pools
        Keys and values of the block: slot j of a text holds ``(token j + 1, hidden j)``.
    draft_vocabs : tuple
        None: a head on a GPU may do with some tokens of its vocabulary for some texts.

    Notes
    -----
    ``x = eh_proj [rms(embedding(token)); rms(hidden)]``, then a block of full attention, then ``h = rms(x)``, and ``head h``
    are the logits of the token after. To guess on, `h` takes the place of the trunk's hidden state; what was read that way
    is forgotten after each step, so that nothing but the trunk's own states stays in the cache.
    """

    device = "cpu"
    draft_vocabs = ()

    def __init__(
        self, model: Model, weights: Weights, config: Config, file: GGUFFile | None = None, *, known: Vocabulary
    ) -> None:
        self.config = config = replace(config, n_layers=1, recurrent=(False,))
        self.threads, self.rows, self._file = model.threads, model.max_rows, file
        slots = model.pools.slots
        # snapshots copy the last page of a text, which the trunk's pages need not all have in common with these
        self.pools = Pools(config, pages=model.pools.pages + slots, slots=slots, kv=model.pools.kv)
        self._space = space = Workspace(config, self.rows)
        self._joined = empty(self.rows, 2 * config.width)
        mixer = FullAttention(weights, config, space, self.pools.k[0], self.pools.v[0])
        self._block = Block(weights, config, space, mixer, [])
        self._eh_proj = PackedLinear(
            self._joined, [weights.matrix("nextn.eh_proj.weight")], [space.all.stream], name="mtp projection"
        )
        self._enorm, self._hnorm = weights.vector("nextn.enorm.weight"), weights.vector("nextn.hnorm.weight")
        own_norm = "nextn.shared_head_norm.weight"
        self._norm = weights.vector(own_norm) if own_norm in weights else model.weights.vector("output_norm.weight")
        self._embedding = _own(weights, "nextn.embed_tokens.weight", model.embedding)
        output = _own(weights, "nextn.shared_head_head.weight", model.output)
        self._head, self._targets = Head(output, slots, known.parts), known.targets
        self._inv_freq, self._rope_gain = inverse_frequencies(config)

    def state(self) -> State:
        """Begin a text.

        Raises
        ------
        PoolExhausted
            If every slot is in use.
        """
        return State(self.pools, _nothing_to_flush)

    def join(self, parts: Sequence[Floats]) -> Floats:
        """Hidden states (N, D) of some parts, one after another, in memory of their own."""
        return np.concatenate([np.empty((0, self.config.width), np.float32), *parts])

    def extended(self, state: State, unread: Floats, hidden: Floats, rows: slice | Sequence[int]) -> Floats:  # noqa: ARG002
        """What a text has unread, and some rows more; it lasts until it is extended again."""
        return self.join([unread, hidden[rows]])

    def record_accepted(self, state: State, hidden: Floats, n_rows: int) -> bool:  # noqa: ARG002
        """Hear that so many rows are text now; whether they were read before that was known: never here."""
        return False

    def read(self, state: State, tokens: Ints, hidden: Floats) -> None:
        """Read tokens (m,) of a text that it goes on with, with the trunk's hidden states (m, D) of those above them.

        Raises
        ------
        PoolExhausted
            If there are no pages for them.
        """
        for start in range(0, len(tokens), self.rows):
            part = slice(start, start + self.rows)
            self._run([state], [tokens[part]], hidden[part])

    def propose(self, requests: Sequence[MtpRequest]) -> list[Candidates]:
        """Read what is new of some texts, and guess how each goes on: the first candidate of each position is followed.

        Parameters
        ----------
        requests : sequence of DraftRequest
            Of different texts.

        Returns
        -------
        list of Candidates
            As many positions and candidates as each wants.

        Raises
        ------
        PoolExhausted
            If there are no pages for the new tokens or for the guesses.
        """
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
        """Guess once, for a text of no meaning, so that kernels are compiled; nobody else may use the head meanwhile."""
        state = self.state()
        try:
            tokens, hidden = np.zeros(2, np.int32), np.zeros((2, self.config.width), np.float32)
            self.propose([MtpRequest(state, tokens, hidden, n_draft=2, params=SampleParams(), position=3, n_candidates=1)])
        finally:
            state.close()

    def close(self) -> None:
        """Close the file, if it is its own."""
        if self._file is not None:
            self._file.close()

    def _fill(self, found: list[Candidates], requests: list[MtpRequest], h: Floats, depth: int) -> None:
        """Find candidates of one more position of some texts, whose last states are `h` (n, D)."""
        self._head.rows(len(requests))[:] = h
        row_params, first = [request.params for request in requests], [request.position for request in requests]
        fill(found, depth, self._head(len(requests)), row_params, first, targets=self._targets)

    def _run(self, states: Sequence[State], tokens: Sequence[Ints], hidden: Floats) -> Floats:
        """Read tokens of some texts, together as many as `hidden` has rows; the states (N, D) that it makes of them."""
        spans = [Span(s, t, np.arange(-1, len(t) - 1, dtype=np.int32), True) for s, t in zip(states, tokens, strict=True)]
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
        self._eh_proj(n)
        self._block(rows, n)
        rms_norm(s.stream, self._norm, eps, out=s.hidden)
        for span in spans:
            span.state.mark_read(span.parents, prefill=True)
        return s.hidden


def _own(weights: Weights, name: str, shared: Matrix) -> Matrix:
    return weights.matrix(name) if name in weights else shared


def _nothing_to_flush(slot: int, kept: Sequence[int], side: int) -> None:
    """Keys and values are all that a block of full attention remembers."""
