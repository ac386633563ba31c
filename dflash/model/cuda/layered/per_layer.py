"""Embeddings of tokens for each layer on a GPU, and how a layer adds its own."""

import numpy as np

from dflash.kernels.embed.cuda import Embed
from dflash.kernels.gelu.cuda import GeluGate
from dflash.kernels.gpu import device
from dflash.kernels.linear.cuda_prefill import INNER_SCALE
from dflash.kernels.norm.cuda import AddNorm, RmsNorm
from dflash.kernels.per_layer.cuda import Halve, LayerEmbeddings
from dflash.model.cuda.layers import LayerContext


class PerLayerEmbedding:
    """See `dflash.model.layered.per_layer.PerLayerEmbedding`: reads `stream` before the first layer, writes `per_layer`."""

    def __init__(self, parts: LayerContext) -> None:
        weights, config, s, ops = parts
        table = weights.matrix("per_layer_token_embd.weight")
        self.embed = Embed(ops.batch.tokens, table, s.token_part, scale=config.per_layer**0.5)
        # the embeddings without the factor that the stream has
        self.halve = Halve(s.stream, s.normed, scale=config.width**-0.5)
        self.project = ops.linear(s.normed, [weights.matrix("per_layer_model_proj.weight")], [s.per_layer])
        gain = weights.vector("per_layer_proj_norm.weight")
        self.combine = LayerEmbeddings(s.per_layer, s.token_part, gain, config.norm_eps)

    def __call__(self, n: int) -> None:
        """Launch for `n` rows."""
        self.embed(n)
        self.halve(n)
        self.project(n)
        self.combine(n)


class PerLayerPart:
    """One layer's part of these embeddings: ``stream = (stream + rms(proj (gelu(inp_gate stream) * part))) * scale``.

    The stream may be too large for float16, so that the gate is computed from its rows over their RMS.
    """

    def __init__(self, parts: LayerContext, layer: int, scale: float) -> None:
        weights, config, s, ops = parts
        eps = config.norm_eps
        self.norm = RmsNorm(s.stream, device.array(np.ones(config.width, np.float32)), eps, half=s.normed)
        self.inp_gate = ops.linear(s.normed, [weights.matrix("inp_gate.weight")], [s.layer_gate])
        self.gate = GeluGate(s.stream, eps, s.layer_gate, s.per_layer, layer * config.per_layer, s.layer_inner)
        self.proj = ops.linear(s.layer_inner, [weights.matrix("proj.weight")], [s.added], scale=1 / INNER_SCALE)
        self.add = AddNorm(s.added, weights.vector("post_norm.weight"), eps, s.stream, scale=scale)

    def __call__(self, n: int) -> None:
        """Launch for `n` rows."""
        self.norm(n)
        self.inp_gate(n)
        self.gate(n)
        self.proj(n)
        self.add(n)
