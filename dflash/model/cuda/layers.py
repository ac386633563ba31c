"""The layers on a GPU: launches bound to the arrays of a pass. Each reads top to bottom as its formula.

What differs between a decode pass and a prefill pass is which launches `Ops` makes.
"""

from types import SimpleNamespace
from typing import Any

from dflash.kernels.norm.cuda import RmsNorm
from dflash.kernels.rope.cuda import Rotate
from dflash.model.config import Config
from dflash.model.cuda.ops import Ops
from dflash.model.cuda.weights import DeviceWeights


class LinearAttention:
    """Gated delta net: convolution, delta rule and gated norm in one op. Reads `normed`, adds to `stream`."""

    def __init__(self, weights: DeviceWeights, config: Config, space: SimpleNamespace, ops: Ops, memory: Any) -> None:
        s = space
        projections = [weights.matrix(n) for n in ("attn_qkv.weight", "attn_gate.weight")]
        projections += [weights.halves(n) for n in ("ssm_alpha.weight", "ssm_beta.weight")]
        self.project = ops.linear(s.normed, projections, [s.mixed, s.gate, s.alpha, s.beta])
        self.mix = ops.delta(s, weights, memory, config.norm_eps)
        self.ssm_out = ops.linear(s.heads, [weights.matrix("ssm_out.weight")], [s.stream], add=True)

    def __call__(self, n: int) -> None:
        """Run `n` rows."""
        self.project(n)
        self.mix(n)
        self.ssm_out(n)


class FullAttention:
    """Softmax attention over the whole text; in Qwen3.5 each head's result passes a gate.

    Reads `normed`, adds to `stream`.
    """

    def __init__(
        self, weights: DeviceWeights, config: Config, space: SimpleNamespace, ops: Ops, cache: tuple[Any, Any]
    ) -> None:
        s = space
        sizes = tuple(array.shape[1] for array in (s.query, s.key, s.value))
        names = ("attn_q.weight", "attn_k.weight", "attn_v.weight")
        projections = weights.matrices(*names, fused="attn_qkv.weight", rows=sizes)
        self.project = ops.linear(s.normed, projections, [s.query, s.key, s.value])
        k, v = cache
        norms = weights.vector("attn_q_norm.weight"), weights.vector("attn_k_norm.weight")
        rotated = s.rotated.reshape(s.n_rows, config.heads, config.head_size)
        self.rotate = Rotate(
            s.query, s.key, s.value, *norms, s.cos, s.sin, ops.batch, eps=config.norm_eps, q=rotated, k=k, v=v
        )
        gate = s.query if config.architecture != "qwen3" else None
        self.attend = ops.attention(rotated, cache, s.attended, gate)
        self.attn_output = ops.linear(s.attended, [weights.matrix("attn_output.weight")], [s.stream], add=True)

    def __call__(self, n: int) -> None:
        """Run `n` rows."""
        self.project(n)
        self.rotate(n)
        self.attend(n)
        self.attn_output(n)


class FeedForward:
    """``down(silu(gate x) * up x)`` of the normed `stream`, added to it."""

    def __init__(self, weights: DeviceWeights, space: SimpleNamespace, ops: Ops, gain: Any, eps: float) -> None:
        s = space
        self.norm = RmsNorm(s.stream, gain, eps, half=s.normed)
        gate_up = [weights.matrix("ffn_gate.weight"), weights.matrix("ffn_up.weight")]
        self.gate_up = ops.gate_up(s.normed, gate_up, s.inner)
        self.ffn_down = ops.down(s.inner, weights.matrix("ffn_down.weight"), s.stream)

    def __call__(self, n: int) -> None:
        """Run `n` rows."""
        self.norm(n)
        self.gate_up(n)
        self.ffn_down(n)


class Block:
    """Norm, mix, add; norm, feed forward, add."""

    def __init__(
        self,
        weights: DeviceWeights,
        config: Config,
        space: SimpleNamespace,
        ops: Ops,
        mixer: LinearAttention | FullAttention,
    ) -> None:
        after = "ffn_norm.weight" if config.architecture == "qwen3" else "post_attention_norm.weight"
        self.norm = RmsNorm(space.stream, weights.vector("attn_norm.weight"), config.norm_eps, half=space.normed)
        self.mixer = mixer
        gain = weights.vector(after)
        if config.experts:
            self.ffn = ops.experts(space.stream, gain, weights.experts(config), config.norm_eps)
        else:
            self.ffn = FeedForward(weights, space, ops, gain, config.norm_eps)

    def __call__(self, n: int) -> None:
        """Run `n` rows."""
        self.norm(n)
        self.mixer(n)
        self.ffn(n)
