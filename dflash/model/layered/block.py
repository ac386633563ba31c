"""Block whose mixer and feed forward have a norm on each side."""

import numpy as np

from dflash.kernels.moe import MoeScratch
from dflash.kernels.ragged import Ragged
from dflash.model.config import Config
from dflash.model.layered.attention import LayeredAttention
from dflash.model.layered.experts import ExpertsBeside
from dflash.model.layered.per_layer import PerLayerPart
from dflash.model.layers import FeedForward, rms_norm
from dflash.model.weights import Weights
from dflash.model.workspace import ModelWorkspace


class NormedBlock:
    """Norm, mix, norm, add; norm, feed forward (and experts), norm, add; the layer's part of a token's embeddings; scale."""

    def __init__(
        self, weights: Weights, config: Config, space: ModelWorkspace, mixer: LayeredAttention, scratch: list[MoeScratch]
    ) -> None:
        layer = mixer.layer
        own = space.of_layer(config.layers[layer])
        self.attn_norm, self.post_attention_norm = map(weights.vector, ("attn_norm.weight", "post_attention_norm.weight"))
        self.ffn_norm, self.post_ffw_norm = map(weights.vector, ("ffn_norm.weight", "post_ffw_norm.weight"))
        self.mixer = mixer
        a = own.all
        self.ffn = FeedForward(weights, a.normed, a.inner, a.hidden, add=False, gelu=config.blocks.gelu)
        self.experts = ExpertsBeside(weights, config, own, scratch) if config.experts else None
        self.post_ffw_norm_1 = weights.vector("post_ffw_norm_1.weight") if config.experts else None
        self.part = PerLayerPart(weights, config, layer, space) if config.per_layer else None
        scale = "layer_output_scale.weight"
        self.layer_output_scale = weights.vector(scale)[0] if scale in weights else np.float32(1)
        self.eps, self.space = config.norm_eps, own

    def __call__(self, rows: Ragged, n: int) -> None:
        """Run the first `n` rows of the workspace."""
        s = self.space.first(n)
        rms_norm(s.stream, self.attn_norm, self.eps, out=s.normed)
        self.mixer(rows, n)
        rms_norm(s.hidden, self.post_attention_norm, self.eps, out=s.hidden)
        s.stream += s.hidden
        rms_norm(s.stream, self.ffn_norm, self.eps, out=s.normed)
        self.ffn(n)
        if self.experts is not None and self.post_ffw_norm_1 is not None:
            rms_norm(s.hidden, self.post_ffw_norm_1, self.eps, out=s.hidden)
            self.experts(n)
        rms_norm(s.hidden, self.post_ffw_norm, self.eps, out=s.hidden)
        s.stream += s.hidden
        if self.part is not None:
            self.part(n)
        s.stream *= self.layer_output_scale
