"""Programs on the CPU: each op becomes a function of a batch, bound to arrays, weights and memory.

A new op is registered by ``@bind.register``, from anywhere.
"""

from collections.abc import Callable
from functools import singledispatch
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dflash.kernels import attention, block_attention, block_conv, conv, delta, norm, rope
from dflash.kernels.arrays import empty
from dflash.kernels.block_attention import Blocks
from dflash.kernels.embed import embed
from dflash.kernels.gelu import gelu_gate
from dflash.kernels.linear import PackedLinear
from dflash.kernels.moe import Moe, MoeScratch
from dflash.kernels.profile import timed
from dflash.kernels.ragged import Ragged
from dflash.model.config import Config
from dflash.model.network import ops
from dflash.model.network.buffers import place
from dflash.model.network.ops import Buffer, Op
from dflash.model.network.program import Program
from dflash.model.run.memory import Memory
from dflash.model.weights import HostTensors, experts_of

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

_LINE = 16  # float32 in a cache line

causal_conv, gated_delta = timed("conv")(conv.causal_conv), timed("delta")(delta.gated_delta)
rms_norm, gated_rms_norm = timed("norm")(norm.rms_norm), timed("gated norm")(norm.gated_rms_norm)
rotate, turn, attend = timed("rope")(rope.rotate), timed("rope")(rope.turn), timed("attention")(attention.attend)
block_attend, convolve = timed("attention")(block_attention.block_attend), timed("conv")(block_conv.block_conv)


class Batch(NamedTuple):
    """Rows of a run: tokens and positions (N,), and their sequences: `rows` of a model, or `blocks` of a draft model."""

    tokens: Ints
    positions: Ints
    rows: Ragged = Ragged(*(np.empty(0, np.int32),) * len(Ragged._fields))
    blocks: Blocks = Blocks(*(np.empty(0, np.int32),) * len(Blocks._fields))


NO_BATCH = Batch(*(np.empty(0, np.int32),) * 2)

Step = Callable[[Batch, int], object]
"""An op bound to its arrays; called with a batch and its number of rows."""


class Host:
    """Arrays, weights and memory that the ops of a program are bound to."""

    def __init__(
        self,
        program: Program,
        weights: HostTensors,
        memory: Memory,
        n_rows: int,
        *,
        eps: float,
        experts: Config | None = None,
    ) -> None:
        self.weights, self.memory, self.n_rows, self.eps, self._experts = weights, memory, n_rows, eps, experts
        self._starts, size = place(program.ops, lambda buffer: -(-buffer.width // _LINE) * _LINE)
        self._arena, self._moe_scratch = empty(n_rows * size), list[MoeScratch]()
        self._products: dict[Op, PackedLinear] = {}

    def __getitem__(self, buffer: Buffer) -> Floats:
        """Return the rows (N, ...) of a buffer."""
        start = self.n_rows * self._starts[buffer]
        return self._arena[start : start + self.n_rows * buffer.width].reshape(self.n_rows, *buffer.shape)

    def native(self, *names: str) -> bool:
        """Return whether the kernels read the types of some matrices."""
        return all(self.weights.matrix(name).native for name in names)

    def gain(self, op: ops.RmsNormOp) -> Floats:
        """Return the gain of a norm."""
        gain = np.ones(op.size, np.float32) if op.gain is None else self.weights.vector(op.gain)
        return gain if op.scale == 1 else gain * np.float32(op.scale)

    def head_weights(self, op: ops.RotateOp) -> tuple[Floats | None, Floats | None, Floats | None]:
        """Return the gains of query and key heads, and the bias of all heads; None for each that there is not."""
        q, k = (None if name is None else self.weights.vector(name) for name in op.gains)
        bias = np.concatenate([self.weights.vector(name) for name in op.bias]) if op.bias else None
        return q if q is None or op.scale == 1 else q * np.float32(op.scale), k, bias

    def product(self, op: ops.LinearOp | ops.GatedLinearOp) -> PackedLinear:
        """Return the plan of a multiply, made once."""
        if op not in self._products:
            matrix = self.weights.matrix
            if isinstance(op, ops.GatedLinearOp):
                gate_up, about = [matrix(op.gate), matrix(op.up)], {"gated": True, "gelu": op.gelu}
                made = PackedLinear(self[op.x], gate_up, [self[op.out]], **about, name="ffn gate up")
            else:
                weights, outs = [matrix(name) for name in op.weights], [self[out] for out in op.outs]
                made = PackedLinear(self[op.x], weights, outs, add=op.add, name=op.label)
            self._products[op] = made
        return self._products[op]

    def moe(self, op: ops.ExpertsOp) -> Moe:
        """Return the plan of experts."""
        assert self._experts is not None, "the model has experts"
        weights = experts_of(self.weights, self._experts, op.prefix, router=self.weights.matrix)
        self._moe_scratch = self._moe_scratch or [MoeScratch(self.n_rows, weights)]
        factors = None if op.factors is None else self.weights.vector(op.factors)
        about: dict[str, Any] = {"router_x": self[op.router_x], "factors": factors, "gelu": op.gelu}
        return Moe(self[op.x], weights, self[op.out], self._moe_scratch[0], **about)


class HeadOp(Op):
    """A multiply with the output of a program."""

    product: PackedLinear


@singledispatch
def bind(op: Op, host: Host) -> Step:  # noqa: ARG001
    """Return an op as a function of a batch."""
    raise TypeError(f"{type(op).__name__} is no op of the CPU")


@bind.register
def _(op: ops.EmbedOp, host: Host) -> Step:
    table, out, scale = host.weights.matrix(op.table), host[op.out], np.float32(op.scale)

    def run(batch: Batch, n: int) -> None:
        embed(batch.tokens, table, out[:n])
        if scale != 1:
            out[:n] *= scale

    return run


@bind.register
def _(op: ops.RotationOp, host: Host) -> Step:
    cos, sin = (host[out] for out in op.outs)

    def run(batch: Batch, n: int) -> None:
        rope.angles(batch.positions, op.inv_freq, cos=cos[:n], sin=sin[:n])
        if op.gain != 1:
            cos[:n] *= op.gain
            sin[:n] *= op.gain

    return run


@bind.register
def _(op: ops.RmsNormOp, host: Host) -> Step:
    x, out, gain = host[op.x].reshape(-1, op.size), host[op.out].reshape(-1, op.size), host.gain(op)
    each = len(x) // max(host.n_rows, 1)
    return lambda _, n: rms_norm(x[: n * each], gain, host.eps, out=out[: n * each])


@bind.register
def _(op: ops.LinearOp | ops.GatedLinearOp, host: Host) -> Step:
    product = host.product(op)
    return lambda _, n: product(n)


@bind.register
def _(op: HeadOp, host: Host) -> Step:  # noqa: ARG001
    return lambda _, n: op.product(n)


@bind.register
def _(op: ops.ConvOp, host: Host) -> Step:
    x, taps, out = host[op.x], conv.taps(host.weights.vector(op.taps)), host[op.out]
    memory = host.memory.conv[op.layer]
    return lambda batch, n: causal_conv(x[:n], taps, batch.rows, memory, out=out[:n])


@bind.register
def _(op: ops.DeltaOp, host: Host) -> Step:
    x, alpha, beta, out = host[op.x], host[op.alpha], host[op.beta], host[op.out]
    decay, memory = (host.weights.vector(op.ssm_a), host.weights.vector(op.dt_bias)), host.memory.delta[op.layer]
    return lambda batch, n: gated_delta(x[:n], alpha[:n], beta[:n], *decay, batch.rows, memory, out=out[:n])


@bind.register
def _(op: ops.GatedNormOp, host: Host) -> Step:
    x, gate, gain, out = host[op.x], host[op.gate], host.weights.vector(op.gain), host[op.out]
    return lambda _, n: gated_rms_norm(x[:n], gate[:n], gain, host.eps, out=out[:n])


@bind.register
def _(op: ops.RotateOp, host: Host) -> Step:
    query, out, (cos, sin) = host[op.query], host[op.out], (host[each] for each in op.angles)
    (q_norm, k_norm, bias), (k, v) = host.head_weights(op), host.memory.caches[op.layer]
    if op.key is None or op.value is None:
        assert q_norm is not None, "queries of a layer without keys have a norm"

        def only_queries(_: Batch, n: int) -> None:
            out[:n] = query[:n].reshape(out[:n].shape)
            turn(out[:n], q_norm, cos[:n], sin[:n], eps=host.eps, mixes=k.dtype == np.uint8)

        return only_queries
    key, value = host[op.key], host[op.value]

    def run(batch: Batch, n: int) -> None:
        projected = query[:n], key[:n], value[:n], q_norm, k_norm, cos[:n], sin[:n]
        rotate(*projected, batch.rows, eps=host.eps, bias=bias, q=out[:n], k=k, v=v)

    return run


@bind.register
def _(op: ops.AttendOp, host: Host) -> Step:
    query, out, cache = host[op.query], host[op.out], host.memory.caches[op.layer]
    gate = None if op.gate is None else host[op.gate]

    def run(batch: Batch, n: int) -> None:
        attend(query[:n], *cache, batch.rows, out=out[:n], window=op.window, gate=None if gate is None else gate[:n])

    return run


@bind.register
def _(op: ops.HeadGateOp, host: Host) -> Step:
    gate, heads = host[op.gate], host[op.out].reshape(host.n_rows, op.gate.width, -1)

    def run(_: Batch, n: int) -> None:
        np.logaddexp(gate[:n], np.float32(0), out=gate[:n])
        heads[:n] *= gate[:n, :, None]

    return run


@bind.register
def _(op: ops.ExpertsOp, host: Host) -> Step:
    moe, out = host.moe(op), host[op.out]

    def store(_: Batch, n: int) -> None:
        out[:n] = 0
        moe(n)

    return (lambda _, n: moe(n)) if op.add else store


@bind.register
def _(op: ops.AddOp, host: Host) -> Step:
    x, out = host[op.x], host[op.out]
    return lambda _, n: np.add(out[:n], x[:n], out=out[:n])


@bind.register
def _(op: ops.ScaleOp, host: Host) -> Step:
    by, out = np.float32(host.weights.vector(op.by)[0] if isinstance(op.by, str) else op.by), host[op.out]
    return lambda _, n: np.multiply(out[:n], by, out=out[:n])


@bind.register
def _(op: ops.CopyOp, host: Host) -> Step:
    ends = np.cumsum([0, *(each.width for each in op.x)]).tolist()
    parts = [(host[op.out][:, start:end], host[each]) for each, start, end in zip(op.x, ends, ends[1:], strict=False)]

    def run(_: Batch, n: int) -> None:
        for out, x in parts:
            out[:n] = x[:n]

    return run


@bind.register
def _(op: ops.GeluGateOp, host: Host) -> Step:
    gate, values, out = host[op.gate], host[op.values][:, op.start : op.start + op.gate.width], host[op.out]
    return lambda _, n: gelu_gate(gate[:n], values[:n], out=out[:n])


@bind.register
def _(op: ops.TurnOp, host: Host) -> Step:
    gain, (cos, sin) = host.weights.vector(op.gain), (host[each] for each in op.angles)
    heads = host[op.out].reshape(host.n_rows, -1, len(gain))
    return lambda _, n: turn(heads[:n], gain, cos[:n], sin[:n], eps=host.eps)


@bind.register
def _(op: ops.BlockAttendOp, host: Host) -> Step:
    rings, out = host.memory.caches[op.layer], host[op.out]
    size = rings[0].shape[3]
    query, key, value = (host[each].reshape(host.n_rows, -1, size) for each in (op.query, op.key, op.value))
    about: dict[str, Any] = {"window": op.window, "causal": op.causal}
    return lambda batch, n: block_attend(query[:n], key[:n], value[:n], *rings, batch.blocks, **about, out=out[:n])


@bind.register
def _(op: ops.BlockConvOp, host: Host) -> Step:
    x, change, base, out = host[op.x], host[op.change], host.weights.vector(op.base), host[op.out]
    about: dict[str, Any] = {"side": op.side, "add": op.add}
    return lambda batch, n: convolve(x[:n], change[:n], base, batch.blocks.row_starts, **about, out=out[:n])
