"""Blocks on a GPU of models whose layers differ."""

from typing import Any

from dflash.kernels.arrays import GpuArray
from dflash.kernels.linear.cuda_prefill import INNER_SCALE
from dflash.kernels.moe.moe_kind import MoeKind
from dflash.kernels.norm.cuda import AddNorm, RmsNorm
from dflash.model.cuda.layered.attention import LayeredAttention
from dflash.model.cuda.layered.per_layer import PerLayerPart
from dflash.model.cuda.layers import LayerContext
from dflash.model.weights import experts_of


class LayeredBlock:
    """A block as a list of launches: ``steps``, in order.

    parts: its `space` is that of the layer.
    cache: keys and values that the layer reads.
    keeps: false: the last launch writes the stream only.
    """

    keeps = False

    def __init__(self, parts: LayerContext, layer: int, cache: tuple[GpuArray, GpuArray]) -> None:
        weights, config, s, _ = parts
        mixer = LayeredAttention(parts, layer, cache)
        norm = RmsNorm(s.stream, weights.vector("attn_norm.weight"), config.norm_eps, half=s.normed)
        self.steps = [norm, mixer, *(self._normed(parts, layer) if config.blocks.normed_outputs else self._plain(parts))]

    def __call__(self, n: int, kept: Any = None) -> None:
        """Launch for `n` rows; the block keeps nothing."""
        assert kept is None, "a block whose layers differ keeps nothing"
        for step in self.steps:
            step(n)

    def _plain(self, parts: LayerContext) -> list[Any]:
        """Return norm and feed forward, or norm and experts, which add to the stream."""
        weights, config, s, ops = parts
        gain = weights.vector(config.blocks.ffn_norm)
        if config.experts and "ffn_gate.weight" not in weights:
            return [ops.experts(s.stream, gain, weights.experts(config), config.norm_eps, behind=None)]
        gate_up = self._gate_up(parts)
        down = ops.down(s.inner, weights.matrix("ffn_down.weight"), s.stream, behind=None)
        return [RmsNorm(s.stream, gain, config.norm_eps, half=s.normed), gate_up, down]

    def _normed(self, parts: LayerContext, layer: int) -> list[Any]:
        """Return norm, add; norm, feed forward (and experts), norm, add; the layer's part of a token's embeddings; scale."""
        weights, config, s, ops = parts
        eps, vector = config.norm_eps, weights.vector
        gate_up = self._gate_up(parts)
        down = ops.linear(s.inner, [weights.matrix("ffn_down.weight")], [s.added], scale=1 / INNER_SCALE)
        steps = [
            AddNorm(s.added, vector("post_attention_norm.weight"), eps, s.stream),
            RmsNorm(s.stream, vector(config.blocks.ffn_norm), eps, half=s.normed),
            gate_up,
            down,
        ]
        if config.experts:
            steps += [RmsNorm(s.added, vector("post_ffw_norm_1.weight"), eps, full=s.added), *_experts_beside(parts)]
        scale = "layer_output_scale.weight"
        factor = float(weights.host.vector(scale)[0]) if scale in weights else 1.0
        of_ffn = 1.0 if config.per_layer else factor
        steps.append(AddNorm(s.added, vector("post_ffw_norm.weight"), eps, s.stream, scale=of_ffn))
        if config.per_layer:
            steps.append(PerLayerPart(parts, layer, factor))
        return steps

    @staticmethod
    def _gate_up(parts: LayerContext) -> Any:
        weights, config, s, ops = parts
        gate_up = [weights.matrix("ffn_gate.weight"), weights.matrix("ffn_up.weight")]
        return ops.gate_up(s.normed, gate_up, s.inner, before=None, gelu=config.blocks.gelu)


def _experts_beside(parts: LayerContext) -> list[Any]:
    """Return experts, see `dflash.model.layered.experts`, and the norm that adds their output to that of the feed forward.

    The norm leaves zeros in `expert_out`, which the experts of the next layer add to.
    """
    weights, config, s, ops = parts

    def router(name: str) -> Any:
        return weights.scaled(name, "ffn_gate_inp.scale", config.width**-0.5)

    factors = weights.vector("ffn_down_exps.scale")
    kind = MoeKind(gelu=config.blocks.gelu, factors=factors, own_gain=True, out=s.expert_out)
    gain, experts = weights.vector("pre_ffw_norm_2.weight"), experts_of(weights, config, router=router)
    return [
        ops.experts(s.stream, gain, experts, config.norm_eps, behind=None, kind=kind),
        AddNorm(s.expert_out, weights.vector("post_ffw_norm_2.weight"), config.norm_eps, s.added, clear=True),
    ]
