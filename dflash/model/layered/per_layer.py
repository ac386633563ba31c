"""Embeddings of tokens for each layer, and how a layer adds its own."""

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.embed import embed
from dflash.kernels.gelu import gelu_gate
from dflash.kernels.linear import PackedLinear
from dflash.kernels.norm import rms_norm
from dflash.model.config import Config
from dflash.model.weights import Weights
from dflash.model.workspace import ModelWorkspace


class PerLayerEmbedding:
    """Embeddings of the tokens of a forward for all layers: of the token itself, and projected from its embedding.

    Reads `stream` before the first layer, writes `per_layer`.

    ``per_layer = (rms(model_proj stream / sqrt(D)) + sqrt(P) token_embd[token]) / sqrt(2)``, with the norm over the P
    elements of a layer.
    """

    def __init__(self, weights: Weights, config: Config, space: ModelWorkspace) -> None:
        a = space.all
        projection = [weights.matrix("per_layer_model_proj.weight")]
        self.project = PackedLinear(a.stream, projection, [a.per_layer], name="per-layer projection")
        self.token_embd = weights.matrix("per_layer_token_embd.weight")
        self.norm, self.eps, self.space = weights.vector("per_layer_proj_norm.weight"), config.norm_eps, space
        self.scale = np.float32(config.width**-0.5)
        self.token_scale, self.sum_scale = np.float32(config.per_layer**0.5), np.float32(2**-0.5)

    def __call__(self, tokens: NDArray[np.int32], n: int) -> None:
        """Run the first `n` rows of the workspace, which hold `tokens`."""
        s = self.space.first(n)
        self.project(n)
        s.per_layer *= self.scale
        parts = s.per_layer.reshape(-1, self.norm.size)
        rms_norm(parts, self.norm, self.eps, out=parts)
        embed(tokens, self.token_embd, s.token_part)
        s.token_part *= self.token_scale
        s.per_layer += s.token_part
        s.per_layer *= self.sum_scale


class PerLayerPart:
    """One layer's part of these embeddings: ``stream += rms(proj (gelu(inp_gate stream) * part))``."""

    def __init__(self, weights: Weights, config: Config, layer: int, space: ModelWorkspace) -> None:
        a = space.all
        self.inp_gate = PackedLinear(a.stream, [weights.matrix("inp_gate.weight")], [a.layer_gate], name="per-layer gate")
        self.proj = PackedLinear(a.layer_gate, [weights.matrix("proj.weight")], [a.hidden], name="per-layer output")
        self.post_norm, self.eps, self.space = weights.vector("post_norm.weight"), config.norm_eps, space
        self.part = slice(layer * config.per_layer, (layer + 1) * config.per_layer)

    def __call__(self, n: int) -> None:
        """Run the first `n` rows of the workspace."""
        s = self.space.first(n)
        self.inp_gate(n)
        gelu_gate(s.layer_gate, s.per_layer[:, self.part], out=s.layer_gate)
        self.proj(n)
        rms_norm(s.hidden, self.post_norm, self.eps, out=s.hidden)
        s.stream += s.hidden
