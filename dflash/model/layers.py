"""The layers of target models. Each reads top to bottom as its formula; attributes are named like tensors in the file."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dflash.kernels import attention, conv, delta, norm, rope
from dflash.kernels.conv.memory import ConvMemory
from dflash.kernels.delta.memory import DeltaMemory
from dflash.kernels.joined import Joined
from dflash.kernels.linear import PackedLinear
from dflash.kernels.moe import Moe, MoeScratch
from dflash.kernels.profile import timed
from dflash.kernels.ragged import Ragged
from dflash.model.config import Config
from dflash.model.weights import HostTensors, LayerTensors, Weights, attention_bias, experts_of, head_norms
from dflash.model.workspace import ModelWorkspace, RowArrays

Floats = NDArray[np.float32]

causal_conv, gated_delta = timed("conv")(conv.causal_conv), timed("delta")(delta.gated_delta)
rms_norm, gated_rms_norm = timed("norm")(norm.rms_norm), timed("gated norm")(norm.gated_rms_norm)
rotate, attend = timed("rope")(rope.rotate), timed("attention")(attention.attend)


class LinearAttention:
    """Gated DeltaNet: a convolution, then a recurrent state that each token decays, corrects and reads.

    Reads `normed`, adds to `stream`.
    """

    def __init__(
        self, weights: Weights, config: Config, space: ModelWorkspace, conv_memory: ConvMemory, delta_memory: DeltaMemory
    ) -> None:
        a = space.all
        names = ("attn_qkv.weight", "attn_gate.weight", "ssm_alpha.weight", "ssm_beta.weight")
        self.project = PackedLinear(
            a.normed, [weights.matrix(n) for n in names], [a.mixed, a.gate, a.alpha, a.beta], name="projections"
        )
        self.ssm_out = PackedLinear(a.heads, [weights.matrix("ssm_out.weight")], [a.stream], add=True, name="mixer output")
        self.ssm_a, self.ssm_dt = weights.vector("ssm_a"), weights.vector("ssm_dt.bias")
        self.ssm_norm = weights.vector("ssm_norm.weight")
        self.ssm_conv1d = conv.taps(weights.vector("ssm_conv1d.weight"))
        self.conv_memory, self.delta_memory = conv_memory, delta_memory
        self.eps, self.space = config.norm_eps, space

    def join(self, to: Joined) -> None:
        """Add its ops, for the rows in `normed`."""
        a = self.space.all
        to.linear(self.project)
        to.causal_conv(a.mixed, self.ssm_conv1d, self.conv_memory, a.convolved)
        to.gated_delta(a.convolved, a.alpha, a.beta, self.ssm_a, self.ssm_dt, self.delta_memory, a.read)
        to.gated_rms_norm(a.read, a.gate, self.ssm_norm, a.heads)
        to.linear(self.ssm_out)

    def __call__(self, rows: Ragged, n: int) -> None:
        """Run the first `n` rows of the workspace."""
        s = self.space.first(n)
        self.project(n)
        causal_conv(s.mixed, self.ssm_conv1d, rows, self.conv_memory, out=s.convolved)
        gated_delta(s.convolved, s.alpha, s.beta, self.ssm_a, self.ssm_dt, rows, self.delta_memory, out=s.read)
        gated_rms_norm(s.read, s.gate, self.ssm_norm, self.eps, out=s.heads)
        self.ssm_out(n)


class FullAttention:
    """Softmax attention over the whole sequence; in a gated architecture each head's output is multiplied by a gate.

    Reads `normed`, adds to `stream`.
    """

    def __init__(self, weights: LayerTensors, config: Config, space: RowArrays, k: np.ndarray, v: np.ndarray) -> None:
        a = space.all
        sizes = tuple(array.shape[1] for array in (a.query, a.key, a.value))
        names = ("attn_q.weight", "attn_k.weight", "attn_v.weight")
        projections = weights.matrices(*names, fused="attn_qkv.weight", rows=sizes)
        self.projections = projections
        self.project = PackedLinear(a.normed, projections, [a.query, a.key, a.value], name="projections")
        self.attn_output = PackedLinear(
            a.attended, [weights.matrix("attn_output.weight")], [a.stream], add=True, name="mixer output"
        )
        self.attn_q_norm, self.attn_k_norm = head_norms(weights, config)
        self.bias = attention_bias(weights, config)
        self.k, self.v = k, v
        self.gated = config.blocks.gated
        self.eps, self.space = config.norm_eps, space

    def join(self, to: Joined, *, divided: bool) -> None:
        """Add its ops, for the rows in `normed`; `divided` if threads should share the pages of a KV head."""
        a = self.space.all
        to.linear(self.project)
        if divided:
            to.call(self._attend)
        else:
            of_heads = self.attn_q_norm, self.attn_k_norm, self.bias
            to.rotate(a.query, a.key, a.value, of_heads, (a.cos, a.sin), q=a.rotated, k=self.k, v=self.v)
            to.attend(a.rotated, self.k, self.v, out=a.attended, gate=a.query if self.gated else None)
        to.linear(self.attn_output)

    def __call__(self, rows: Ragged, n: int) -> None:
        """Run the first `n` rows of the workspace."""
        self.project(n)
        self._attend(rows, n)
        self.attn_output(n)

    def append(self, rows: Ragged, n: int) -> None:
        """Append the keys and values of the first `n` rows to the cache, from their projections."""
        s = self.space.first(n)
        norms = self.attn_q_norm, self.attn_k_norm
        out: dict[str, Any] = {"q": s.rotated, "k": self.k, "v": self.v}
        rotate(s.query, s.key, s.value, *norms, s.cos, s.sin, rows, eps=self.eps, bias=self.bias, **out)

    def _attend(self, rows: Ragged, n: int) -> None:
        self.append(rows, n)
        s = self.space.first(n)
        attend(s.rotated, self.k, self.v, rows, out=s.attended, gate=s.query if self.gated else None)


class FeedForward:
    """``down(silu(gate x) * up x)``, or with GELU; reads `x`, uses `inner`, and writes or adds its output to `out`."""

    def __init__(
        self, weights: HostTensors, x: Floats, inner: Floats, out: Floats, *, add: bool = True, gelu: bool = False
    ) -> None:
        gate_up = [weights.matrix("ffn_gate.weight"), weights.matrix("ffn_up.weight")]
        self.gate_up = PackedLinear(x, gate_up, [inner], gated=True, gelu=gelu, name="ffn gate up")
        self.ffn_down = PackedLinear(inner, [weights.matrix("ffn_down.weight")], [out], add=add, name="ffn down")

    def join(self, to: Joined) -> None:
        """Add its ops."""
        to.linear(self.gate_up)
        to.linear(self.ffn_down)

    def __call__(self, n: int) -> None:
        """Run the first `n` rows of the workspace."""
        self.gate_up(n)
        self.ffn_down(n)


class Mixer(Protocol):
    """Linear or full attention of a block. Called by its block with the first rows of the workspace normed."""

    def __call__(self, rows: Ragged, n: int) -> None:
        """Run the first `n` rows of the workspace: add to `stream`."""


class Block:
    """Norm, mix, add; norm, feed forward, add."""

    def __init__(self, weights: Weights, config: Config, space: RowArrays, mixer: Mixer, scratch: list[MoeScratch]) -> None:
        a = space.all
        self.attn_norm, self.ffn_norm = weights.vector("attn_norm.weight"), weights.vector(config.blocks.ffn_norm)
        self.mixer = mixer
        if config.experts and "ffn_gate.weight" not in weights:
            block_experts = experts_of(weights, config, router=weights.matrix)
            scratch[:] = scratch or [MoeScratch(space.n_rows, block_experts)]
            self.ffn: FeedForward | Moe = Moe(a.normed, block_experts, a.stream, scratch[0])
        else:
            self.ffn = FeedForward(weights, a.normed, a.inner, a.stream)
        self.eps, self.space = config.norm_eps, space

    def join(self, to: Joined, *, divided: bool) -> None:
        """Add its ops, as `__call__` runs them; see `FullAttention.join`."""
        a = self.space.all
        to.rms_norm(a.stream, self.attn_norm, a.normed)
        if isinstance(self.mixer, FullAttention):
            self.mixer.join(to, divided=divided)
        elif isinstance(self.mixer, LinearAttention):
            self.mixer.join(to)
        else:
            to.call(self.mixer)
        to.rms_norm(a.stream, self.ffn_norm, a.normed)
        if isinstance(self.ffn, FeedForward):
            self.ffn.join(to)
        else:
            ffn = self.ffn
            to.call(lambda _, n: ffn(n))

    def __call__(self, rows: Ragged, n: int) -> None:
        """Run the first `n` rows of the workspace."""
        s = self.space.first(n)
        rms_norm(s.stream, self.attn_norm, self.eps, out=s.normed)
        self.mixer(rows, n)
        rms_norm(s.stream, self.ffn_norm, self.eps, out=s.normed)
        self.ffn(n)
