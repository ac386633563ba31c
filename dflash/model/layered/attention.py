"""Attention of a layer that has its own number of heads, a window, and perhaps the keys and values of another layer."""

import numpy as np

from dflash.kernels.linear import PackedLinear
from dflash.kernels.norm import rms_norm
from dflash.kernels.ragged import Ragged
from dflash.kernels.rope import turn
from dflash.model.config import Config
from dflash.model.layers import attend, rotate
from dflash.model.weights import Weights
from dflash.model.workspace import ModelWorkspace


class LayeredAttention:
    """Softmax attention of one layer, over the last tokens if it has a window, times the softplus of a gate if it has one.

    Reads `normed`; writes `hidden` in an architecture with normed outputs, else adds to `stream`. A layer without keys of
    its own attends to those of the layer that `LayerSizes.source` names. Without `attn_v`, values are the keys before their
    norm.
    """

    def __init__(
        self, weights: Weights, config: Config, layer: int, space: ModelWorkspace, cache: tuple[np.ndarray, np.ndarray]
    ) -> None:
        blocks, self.layer, self.sizes = config.blocks, layer, config.layers[layer]
        self.space = space.of_layer(self.sizes)
        a = self.space.all
        outs = {"attn_q.weight": a.query, "attn_k.weight": a.key, "attn_v.weight": a.value, "attn_gate.weight": a.head_gate}
        names = [name for name in outs if name in weights]
        self.project = PackedLinear(
            a.normed, [weights.matrix(name) for name in names], [outs[name] for name in names], name="projections"
        )
        out, add = (a.hidden, False) if blocks.normed_outputs else (a.stream, True)
        self.attn_output = PackedLinear(
            a.attended, [weights.matrix("attn_output.weight")], [out], add=add, name="mixer output"
        )
        # scores are divided by the root of the head size; where they should not be, queries are larger by it
        scale = np.float32(self.sizes.head_size**0.5 if blocks.unscaled else 1)
        self.attn_q_norm = weights.vector("attn_q_norm.weight") * scale
        self.own_keys, self.keys_are_values = "attn_k.weight" in weights, "attn_v.weight" not in weights
        self.attn_k_norm = weights.vector("attn_k_norm.weight") if self.own_keys else None
        self.value_norm = np.ones(self.sizes.head_size, np.float32) if blocks.unscaled else None
        (self.k, self.v), self.eps = cache, config.norm_eps

    def __call__(self, rows: Ragged, n: int) -> None:
        """Run the first `n` rows of the workspace."""
        s, size, window = self.space.first(n), self.sizes.head_size, self.sizes.window
        cos, sin = (s.window_cos, s.window_sin) if window else (s.cos, s.sin)
        self.project(n)
        if self.attn_k_norm is None:
            query = s.query.reshape(n, self.sizes.heads, size)
            turn(query, self.attn_q_norm, cos, sin, eps=self.eps, mixes=self.k.dtype == np.uint8)
        else:
            query = s.rotated
            if self.keys_are_values:
                s.value[:] = s.key
            if self.value_norm is not None:
                values = s.value.reshape(-1, size)
                rms_norm(values, self.value_norm, self.eps, out=values)
            norms = self.attn_q_norm, self.attn_k_norm
            rotate(s.query, s.key, s.value, *norms, cos, sin, rows, eps=self.eps, q=query, k=self.k, v=self.v)
        attend(query, self.k, self.v, rows, out=s.attended, window=window)
        if self.sizes.gate:
            # softplus, one factor for each head or for each element
            np.logaddexp(s.head_gate, np.float32(0), out=s.head_gate)
            gated = s.attended.reshape(n, self.sizes.gate, -1)
            gated *= s.head_gate[:, :, None]
        self.attn_output(n)
