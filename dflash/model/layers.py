"""The layers of target models. Each reads top to bottom as its formula; attributes are named like tensors in the file."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dflash.kernels import attention, conv, delta, joined, norm, rope
from dflash.kernels.conv.memory import ConvMemory
from dflash.kernels.delta.memory import DeltaMemory
from dflash.kernels.linear import PackedLinear
from dflash.kernels.moe import Moe, MoeScratch
from dflash.kernels.profile import profiling, timed
from dflash.kernels.ragged import Ragged
from dflash.model.config import Config
from dflash.model.weights import HostTensors, Weights, experts_of
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
        self.joins = self.project.native and self.ssm_out.native
        self._fixed: tuple[Any, ...] = ()

    def joined(self, gain: Floats, rows: Ragged) -> None:
        """Norm one row of `stream` and run it, in one call; only if `joins`."""
        self._fixed = self._fixed or self._arguments()
        for product in (self.project, self.ssm_out):
            product.plan(1)
        batch = rows.row_starts, rows.parent, rows.slot, rows.prefill, rows.accepted, rows.n_accepted, rows.buffer
        joined.recurrent(gain, *batch, *self._fixed)

    def _arguments(self) -> tuple[Any, ...]:
        """Return the arguments that are the same for every token."""
        s, conv_memory, memory = self.space.first(1), self.conv_memory, self.delta_memory
        before = s.stream, self.eps, s.normed, self.project.plan(1), s.mixed, self.ssm_conv1d
        inputs = *delta.task_shape(memory, 1), s.alpha, s.beta, self.ssm_a, self.ssm_dt
        states = memory.state, memory.k, memory.u, memory.decay, memory.head_run
        after = s.read, s.gate, self.ssm_norm, s.heads, self.ssm_out.plan(1)
        return *before, conv_memory.tail, conv_memory.inputs, s.convolved, *inputs, *states, *after

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

    def __init__(self, weights: Weights, config: Config, space: ModelWorkspace, k: np.ndarray, v: np.ndarray) -> None:
        a = space.all
        sizes = tuple(array.shape[1] for array in (a.query, a.key, a.value))
        names = ("attn_q.weight", "attn_k.weight", "attn_v.weight")
        projections = weights.matrices(*names, fused="attn_qkv.weight", rows=sizes)
        self.project = PackedLinear(a.normed, projections, [a.query, a.key, a.value], name="projections")
        self.attn_output = PackedLinear(
            a.attended, [weights.matrix("attn_output.weight")], [a.stream], add=True, name="mixer output"
        )
        self.attn_q_norm, self.attn_k_norm = weights.vector("attn_q_norm.weight"), weights.vector("attn_k_norm.weight")
        self.k, self.v = k, v
        self.gated = config.blocks.gated
        self.eps, self.space = config.norm_eps, space
        self.joins = self.project.native and self.attn_output.native
        self._fixed: tuple[Any, ...] = ()

    def joined(self, gain: Floats, rows: Ragged) -> None:
        """Norm one row of `stream` and run it, in one call; only if `joins`."""
        self._fixed = self._fixed or self._arguments()
        for product in (self.project, self.attn_output):
            product.plan(1)
        joined.attention(
            gain, rows.row_starts, rows.parent, rows.depth, rows.sequence, rows.length, rows.pages, *self._fixed
        )

    def _arguments(self) -> tuple[Any, ...]:
        """Return the arguments that are the same for every token."""
        s = self.space.first(1)
        projected = s.query, s.key, s.value, self.attn_q_norm, self.attn_k_norm, s.cos, s.sin, s.rotated
        gate = s.query if self.gated else np.empty((0, 0), np.float32)
        before = s.stream, self.eps, s.normed, self.project.plan(1)
        return *before, *projected, self.k, self.v, gate, s.attended, self.attn_output.plan(1)

    def __call__(self, rows: Ragged, n: int) -> None:
        """Run the first `n` rows of the workspace."""
        s = self.space.first(n)
        self.project(n)
        norms = self.attn_q_norm, self.attn_k_norm
        rotate(s.query, s.key, s.value, *norms, s.cos, s.sin, rows, eps=self.eps, q=s.rotated, k=self.k, v=self.v)
        attend(s.rotated, self.k, self.v, rows, out=s.attended, gate=s.query if self.gated else None)
        self.attn_output(n)


class FeedForward:
    """``down(silu(gate x) * up x)``, or with GELU; reads `x`, uses `inner`, and writes or adds its output to `out`."""

    def __init__(
        self, weights: HostTensors, x: Floats, inner: Floats, out: Floats, *, add: bool = True, gelu: bool = False
    ) -> None:
        gate_up = [weights.matrix("ffn_gate.weight"), weights.matrix("ffn_up.weight")]
        self.gate_up = PackedLinear(x, gate_up, [inner], gated=True, gelu=gelu, name="ffn gate up")
        self.ffn_down = PackedLinear(inner, [weights.matrix("ffn_down.weight")], [out], add=add, name="ffn down")
        self.joins = self.gate_up.native and self.ffn_down.native

    def joined(self, source: Floats, gain: Floats, eps: float, x: Floats) -> None:
        """Norm one row `source` to `x` and run it, in one call; only if `joins`."""
        joined.feed_forward(source, gain, eps, x, self.gate_up.plan(1), self.ffn_down.plan(1))

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

    def __call__(self, rows: Ragged, n: int) -> None:
        """Run the first `n` rows of the workspace."""
        s, one = self.space.first(n), n == 1 and not profiling()
        if one and isinstance(self.mixer, LinearAttention | FullAttention) and self.mixer.joins:
            self.mixer.joined(self.attn_norm, rows)
        else:
            rms_norm(s.stream, self.attn_norm, self.eps, out=s.normed)
            self.mixer(rows, n)
        if one and isinstance(self.ffn, FeedForward) and self.ffn.joins:
            self.ffn.joined(s.stream, self.ffn_norm, self.eps, s.normed)
        else:
            rms_norm(s.stream, self.ffn_norm, self.eps, out=s.normed)
            self.ffn(n)
