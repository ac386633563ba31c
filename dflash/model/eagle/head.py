"""An EAGLE-3 head on the CPU."""

from collections.abc import Mapping, Sequence
from typing import Any

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
from dflash.model.draft.files.source import DraftLayerWeights, Source
from dflash.model.draft.vocabulary import Vocabulary
from dflash.model.eagle.config import EagleConfig
from dflash.model.few_rows import divides
from dflash.model.layers import FeedForward, FullAttention
from dflash.model.model import Model
from dflash.model.recurrent_head import RecurrentHead
from dflash.model.rope import tabulate
from dflash.model.state.sequence_state import State
from dflash.model.workspace import RowArrays

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]


class EagleHead(RecurrentHead):
    """EAGLE-3 head; its features are the outputs of some layers of the target, side by side.

    config: configuration that was fitted to the target.
    source: weights of the head; closed with it.
    embedding, output: embedding and LM head: the head's own, or the target's.

    ``h = fc features``, with norms before `fc` as the configuration says. The layer reads rows of twice the width: ``a =
    attention [rms(embedding); rms(h)]``, ``x = h + a`` or ``x = rms(h) + a``, ``x = x + feed_forward(rms(x))``. The logits
    of the next token are ``head rms(x)``. For further draft tokens, `x` or ``rms(x)`` replaces `h`.

    References
    ----------
    EAGLE-3, arXiv 2503.01840.
    """

    def __init__(
        self, model: Model, config: EagleConfig, source: Source, embedding: Matrix, output: Matrix, *, known: Vocabulary
    ) -> None:
        self.config, self._source = config, source
        self.target_layer_ids, n = config.target_layer_ids, len(config.target_layer_ids)
        block, n_features = config.block(model.config.context), n * config.target_width
        super().__init__(model, block, embedding, output, known=known, n_features=n_features)
        weights, space, width = DraftLayerWeights(source, 0), self._space, config.width
        self._joined, self._fused = empty(self.rows, 2 * width), empty(self.rows, width)
        self._raw, fc = empty(self.rows, n_features), source.matrix("fc.weight")
        self._fc = PackedLinear(self._raw, [fc], [self._fused], name="eagle features")
        wide = RowArrays(self.rows, vars(space.all) | {"normed": self._joined})
        self._mixer = mixer = FullAttention(weights, block, wide, self.pools.k[0], self.pools.v[0])
        a = space.all
        self._key_value = PackedLinear(self._joined, mixer.projections[1:], [a.key, a.value], name="eagle keys and values")
        self._ffn = FeedForward(weights, a.normed, a.inner, a.stream)
        names = {"whole": ["input_norm.weight"], "layers": [f"fc_norm.{i}.weight" for i in range(n)], "none": []}
        self._feature_norms = [source.vector(name) for name in names[config.feature_norm]]
        self._attn_norm, self._hidden_norm = weights.vector("attn_norm.weight"), weights.vector("hidden_norm.weight")
        self._ffn_norm, self._norm = weights.vector("ffn_norm.weight"), source.vector("output_norm.weight")
        self._few = [self._plan(divided=divided) for divided in (False, True)]

    def features_of(self, out: Any) -> Any:
        """Return the outputs of the target's layers by layer; see `RecurrentHead.features_of`."""
        return out.captured

    def extended(
        self,
        state: State,  # noqa: ARG002
        unread: Floats,
        features: Mapping[int, Floats],
        rows: slice | Sequence[int],
    ) -> Floats:
        """Return the unread features of a sequence with `rows` of `features` appended."""
        return self.join([unread, np.concatenate([features[layer][rows] for layer in self.target_layer_ids], axis=1)])

    def close(self) -> None:
        """Close the files of the head."""
        self._source.close()

    def _plan(self, *, divided: bool) -> Joined:
        """Return the ops of few rows after the two norms; see `FullAttention.join`."""
        joined, a = Joined(self.config.norm_eps), self._space.all
        self._mixer.join(joined, divided=divided)
        joined.rms_norm(a.stream, self._ffn_norm, a.normed)
        self._ffn.join(joined)
        joined.rms_norm(a.stream, self._norm, a.hidden)
        return joined

    def _project(self, features: Floats) -> Floats:
        use_threads(self.threads)
        n, eps = len(features), self.config.norm_eps
        raw = self._raw[:n]
        if self.config.feature_norm == "layers":
            parts = [np.ascontiguousarray(part) for part in np.split(features, len(self.target_layer_ids), axis=1)]
            for part, gain in zip(parts, self._feature_norms, strict=True):
                rms_norm(part, gain, eps, out=part)
            np.concatenate(parts, axis=1, out=raw)
        else:
            raw[:] = features
            for gain in self._feature_norms:
                rms_norm(raw, gain, eps, out=raw)
        self._fc(n)
        return self._fused[:n]

    def _run(
        self, states: Sequence[State], tokens: Sequence[Ints], hidden: Floats, *, drafts: bool = True
    ) -> tuple[Floats, Floats]:
        spans = [Span.chain(s, t, prefill=True) for s, t in zip(states, tokens, strict=True)]
        for span in spans:
            span.state.reserve(len(span.tokens))
        ids, positions, rows = ragged(spans)
        n, config, eps = len(ids), self.config, self.config.norm_eps
        use_threads(self.threads)
        s = self._space.first(n)
        embed(ids, self._embedding, s.normed)
        rms_norm(s.normed, self._attn_norm, eps, out=s.normed)
        self._joined[:n, : config.width] = s.normed
        rms_norm(hidden, self._hidden_norm, eps, out=s.normed)
        self._joined[:n, config.width :] = s.normed
        s.stream[:] = s.normed if config.normed_residual else hidden
        tabulate(positions, self._inv_freq, self._rope_gain, s)
        if not drafts:
            self._key_value(n)
            self._mixer.append(rows, n)
        elif n <= MAX_ROWS:
            self._few[divides(rows, n)](rows, n)
        else:
            self._mixer(rows, n)
            rms_norm(s.stream, self._ffn_norm, eps, out=s.normed)
            self._ffn(n)
            rms_norm(s.stream, self._norm, eps, out=s.hidden)
        for span in spans:
            span.state.mark_read(span.parents, prefill=True)
        return s.hidden, s.hidden if config.normed_output else s.stream
