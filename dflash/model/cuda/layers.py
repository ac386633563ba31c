"""The layers on a GPU: launches bound to the arrays of a pass. Each reads top to bottom as its formula.

Decode and prefill passes differ only in the launches that `Ops` makes. Each norm stands between a launch that adds to the
stream and a launch that reads the normed stream. Where these two launches carry the norm (`SplitNorm`), the norm has no
launch of its own, except the first norm of a pass.
"""

from types import SimpleNamespace
from typing import Any, NamedTuple

from dflash.kernels.arrays import GpuArray
from dflash.kernels.norm.cuda import RmsNorm
from dflash.kernels.rope.cuda import Rotate
from dflash.model.config import Config
from dflash.model.cuda.ops import Norm, Op, Ops
from dflash.model.cuda.weights import DeviceWeights
from dflash.model.weights import head_norms


class LayerContext(NamedTuple):
    """Inputs from which the launches of a block are built.

    weights: weights of the block.
    space: arrays of the pass; see `workspace`.
    """

    weights: DeviceWeights
    config: Config
    space: SimpleNamespace
    ops: Ops


class LayerNorms(NamedTuple):
    """Norms of a block: before its mixer and before its feed forward; None for experts, whose op contains the norm.

    The mixer has none where other launches make its input.
    """

    mixer: Norm | None
    ffn: Norm | None

    @classmethod
    def of(cls, parts: LayerContext, *, first: bool) -> "LayerNorms":
        """Make the norms of a block; `first` marks the first block of a pass."""
        weights, config, space, ops = parts
        mixer = ops.norm(space, weights.vector("attn_norm.weight"), config.norm_eps, first=first)
        if config.experts:
            return cls(mixer, None)
        return cls(mixer, ops.norm(space, weights.vector(config.blocks.ffn_norm), config.norm_eps, first=False))


class LinearAttention:
    """Gated delta net: convolution, delta rule and gated norm in one op. Reads `normed`, adds to `stream`."""

    def __init__(self, parts: LayerContext, memory: tuple[GpuArray, GpuArray], norms: LayerNorms) -> None:
        weights, config, s, ops = parts
        projections = [weights.matrix(n) for n in ("attn_qkv.weight", "attn_gate.weight")]
        projections += [weights.halves(n) for n in ("ssm_alpha.weight", "ssm_beta.weight")]
        self.project = ops.linear(s.normed, projections, [s.mixed, s.gate, s.alpha, s.beta], before=norms.mixer)
        self.mix = ops.delta(s, weights, memory, config.norm_eps)
        self.output = ops.add(s.heads, weights.matrix("ssm_out.weight"), s.stream, behind=norms.ffn)

    def __call__(self, n: int) -> None:
        """Launch for `n` rows."""
        self.project(n)
        self.mix(n)
        self.output(n)


class FullAttention:
    """Softmax attention over the whole text; in a gated architecture each head's output is multiplied by a gate.

    Reads `normed`, or whatever `project` reads, which writes `query`, `key` and `value`; adds to `stream`.
    """

    def __init__(
        self, parts: LayerContext, cache: tuple[GpuArray, GpuArray], norms: LayerNorms, project: Op | None = None
    ) -> None:
        weights, config, s, ops = parts
        self.project = project or self._of_normed(parts, norms)
        k, v = cache
        gains, bias = head_norms(weights, config), weights.attention_bias(config)
        rotated = s.rotated.reshape(s.n_rows, config.heads, config.head_size)
        of_heads: dict[str, Any] = {"eps": config.norm_eps, "bias": bias}
        self.rotate = Rotate(s.query, s.key, s.value, *gains, s.cos, s.sin, ops.batch, q=rotated, k=k, v=v, **of_heads)
        gate = s.query if config.blocks.gated else None
        self.attend = ops.attention(rotated, cache, s.attended, gate)
        self.rotate_and_attend = ops.attention_of_row(self.rotate, self.attend)
        self.output = ops.add(s.attended, weights.matrix("attn_output.weight"), s.stream, behind=norms.ffn)

    @staticmethod
    def _of_normed(parts: LayerContext, norms: LayerNorms) -> Op:
        weights, _, s, ops = parts
        projections = [weights.matrix(f"attn_{part}.weight") for part in "qkv"]
        return ops.linear(s.normed, projections, [s.query, s.key, s.value], before=norms.mixer)

    def __call__(self, n: int) -> None:
        """Launch for `n` rows."""
        self.project(n)
        if n == 1 and self.rotate_and_attend:
            self.rotate_and_attend()
        else:
            self.rotate(n)
            self.attend(n)
        self.output(n)


class FeedForward:
    """``down(silu(gate x) * up x)`` of the normed `stream`, added to it."""

    def __init__(self, parts: LayerContext, norm: Norm | None, behind: Norm | None) -> None:
        weights, _, s, ops = parts
        self.norm = launched(norm)
        gate_up = [weights.matrix("ffn_gate.weight"), weights.matrix("ffn_up.weight")]
        self.gate_up = ops.gate_up(s.normed, gate_up, s.inner, before=norm)
        self.ffn_down = ops.down(s.inner, weights.matrix("ffn_down.weight"), s.stream, behind=behind)

    def __call__(self, n: int, **settings: Any) -> None:
        """Launch for `n` rows; `settings` go to the launch that adds to the stream."""
        if self.norm:
            self.norm(n)
        self.gate_up(n)
        self.ffn_down(n, **settings)


class Block:
    """Norm, mix, add; norm, feed forward, add.

    behind: first norm of the next block.
    keeps: whether the last launch can write the stream to a second array, too.
    """

    def __init__(
        self, parts: LayerContext, mixer: LinearAttention | FullAttention, norms: LayerNorms, behind: Norm | None = None
    ) -> None:
        weights, config, space, ops = parts
        self.norm = launched(norms.mixer)
        self.mixer = mixer
        self.keeps = not ops.prefill and not config.experts
        if config.experts:
            gain = weights.vector(config.blocks.ffn_norm)
            self.ffn: FeedForward | Op = ops.experts(
                space.stream, gain, weights.experts(config), config.norm_eps, behind=behind
            )
        else:
            self.ffn = FeedForward(parts, norms.ffn, behind)

    def __call__(self, n: int, kept: Any = None) -> None:
        """Launch for `n` rows; if the block `keeps`, the stream is also written to the array `kept`."""
        if self.norm:
            self.norm(n)
        self.mixer(n)
        if kept is None:
            self.ffn(n)
        else:
            assert isinstance(self.ffn, FeedForward), "a block of experts keeps nothing"
            self.ffn(n, kept=kept)


def launched(norm: Norm | None) -> RmsNorm | None:
    """Return the norm if it is a launch of its own, else None."""
    return norm if isinstance(norm, RmsNorm) else None
