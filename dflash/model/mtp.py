"""The MTP head of a model (NextN): one more block, which predicts the token after the next."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.arrays import empty
from dflash.kernels.cpu.jit import use_threads
from dflash.kernels.embed import embed
from dflash.kernels.formats import Matrix
from dflash.kernels.joined import MAX_ROWS, Joined
from dflash.kernels.linear import PackedLinear
from dflash.kernels.norm import rms_norm
from dflash.model.batch import Span, ragged
from dflash.model.config import Config
from dflash.model.draft.vocabulary import Vocabulary
from dflash.model.few_rows import divides
from dflash.model.gguf.file import GGUFFile
from dflash.model.layers import Block, FullAttention
from dflash.model.model import Model
from dflash.model.recurrent_head import RecurrentHead
from dflash.model.rope import tabulate
from dflash.model.state.sequence_state import State
from dflash.model.weights import Weights

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]


class MtpHead(RecurrentHead):
    """MTP head of a trunk; its features are the outputs of the trunk's last norm.

    model: the trunk, whose embedding, LM head, rotary frequencies and threads the head shares.
    weights: weights of the block.
    config: configuration of the file that holds the block.
    file: the file that holds the block, if it is not the trunk's; closed with the head.

    ``x = eh_proj [rms(embedding(token)); rms(hidden)]``, then a block of full attention, then ``h = rms(x)``; ``head h`` are
    the logits of the next token. For further draft tokens, `h` replaces the trunk's hidden state.
    """

    def __init__(
        self, model: Model, weights: Weights, config: Config, file: GGUFFile | None = None, *, known: Vocabulary
    ) -> None:
        self.config = config = replace(config, n_layers=1, recurrent=(False,))
        self._file = file
        embedding = _own(weights, "nextn.embed_tokens.weight", model.embedding)
        output = _own(weights, "nextn.shared_head_head.weight", model.output)
        super().__init__(model, config, embedding, output, known=known, n_features=config.width)
        space = self._space
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
        self._few = [self._plan(divided=divided) for divided in (False, True)]

    def close(self) -> None:
        """Close the file if the head has its own."""
        if self._file is not None:
            self._file.close()

    def _plan(self, *, divided: bool) -> Joined:
        """Return the ops of few rows after the concatenation; see `FullAttention.join`."""
        joined, a = Joined(self.config.norm_eps), self._space.all
        joined.linear(self._eh_proj)
        self._block.join(joined, divided=divided)
        joined.rms_norm(a.stream, self._norm, a.hidden)
        return joined

    def _run(
        self, states: Sequence[State], tokens: Sequence[Ints], hidden: Floats, *, drafts: bool = True
    ) -> tuple[Floats, Floats]:
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
        return s.hidden, s.hidden


def _own(weights: Weights, name: str, shared: Matrix) -> Matrix:
    return weights.matrix(name) if name in weights else shared
