"""Programs on a GPU: each op, or fused op, becomes launches that are bound to the arrays of a pass.

Decode and prefill passes differ only in the launches that `Ops` makes. A norm of the residual stream stands between a launch
that adds to the stream and one that reads the normed stream. Where these two carry the norm (`SplitNorm`), it has no launch
of its own, except the first norm of a pass. A new op is registered by ``@launch.register``, from anywhere.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import singledispatch
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from dflash.kernels.arrays import GpuArray
from dflash.kernels.attention.cuda import Workspace
from dflash.kernels.attention.cuda_fallback import AttendRows
from dflash.kernels.attention.cuda_gate import HeadGate
from dflash.kernels.block_attention.cuda import BlockAttend, DeviceBlocks
from dflash.kernels.block_conv.cuda import BlockConv
from dflash.kernels.delta.cuda import Inputs, MixerWeights
from dflash.kernels.embed.cuda import Embed
from dflash.kernels.gelu.cuda import GeluGate
from dflash.kernels.gpu import device
from dflash.kernels.kv_types import is_quantized
from dflash.kernels.linear.cuda_prefill import INNER_SCALE
from dflash.kernels.moe.cuda import DecodeMoe
from dflash.kernels.moe.moe_kind import MoeKind
from dflash.kernels.norm.cuda import AddNorm, RmsNorm
from dflash.kernels.per_layer.cuda import Halve, LayerEmbeddings
from dflash.kernels.rope.cuda import Angles, Rotate
from dflash.model.config import Config
from dflash.model.cuda.ops import Norm, Ops
from dflash.model.cuda.weights import DeviceWeights
from dflash.model.network import ops
from dflash.model.network.ops import Buffer, Op
from dflash.model.network.program import Program
from dflash.model.run import fusions
from dflash.model.run.fusions import fused
from dflash.model.run.memory import Memory
from dflash.model.weights import experts_of

Step = Callable[..., None]
"""A launch; called with a number of rows."""

_TILED = 256
"""Largest head of the attention kernels that read tiles; they have no window."""


class DraftBatch(NamedTuple):
    """Layout of the rows of a draft model's blocks.

    blocks: blocks and the range of context positions that each sees.
    own: layout by which the blocks' own keys and values are written; see `rows_of`.
    """

    each: int
    blocks: DeviceBlocks
    own: SimpleNamespace
    k: GpuArray
    v: GpuArray
    workspace: Workspace


class Device:
    """Arrays, weights and memory that the ops of a pass are bound to.

    weights, tables: weights of the layers, and those that belong to no layer.
    space: arrays of the pass by the names of buffers; see `workspace`.
    config: sizes of a target model; None in a draft model.
    halves: buffers that multiplies read, as float16.
    early: buffers that multiplies of this layer read early, as the experts of the layer before publish or clear them.
    clears: array that experts of this layer clear.
    """

    def __init__(
        self,
        make: Ops,
        weights: DeviceWeights[Any],
        space: SimpleNamespace,
        memory: Memory,
        *,
        eps: float,
        config: Config | None = None,
        tables: DeviceWeights[Any] | None = None,
        shared: Mapping[str, Any] | None = None,
        draft: DraftBatch | None = None,
    ) -> None:
        self.make, self._weights, self._tables, self.space, self.memory = make, weights, tables or weights, space, memory
        self.eps, self.config, self.draft = eps, config, draft
        self._shared, self._whole_space = shared or {}, space
        self.layered = config is not None and bool(config.layers)
        self.norms: dict[Buffer, Norm] = {}
        self.halves, self.stream = set[Buffer](), Buffer("stream", ())
        self._scaled = set[Buffer]()
        self.early, self.clears = set[Buffer](), None

    def enter(self, layer: int) -> None:
        """Use the arrays of a layer from now on, where layers differ."""
        if self.layered and self.config is not None:
            self.space = self._whole_space.of_layers[self.config.layers[layer]]

    def __getitem__(self, buffer: Buffer) -> GpuArray:
        """Return the array of a buffer; that of the residual stream is `stream` whatever its buffer is called."""
        return self.space.stream if buffer is self.stream else self.named(buffer)

    def named(self, buffer: Buffer) -> GpuArray:
        """Return the array of a buffer by its name; one that the workspace does not know is allocated."""
        if not hasattr(self.space, buffer.name):
            dtype = np.float16 if buffer in self.halves else np.float32
            setattr(self.space, buffer.name, device.empty(self.space.n_rows, buffer.width, dtype=dtype))
        return getattr(self.space, buffer.name)

    def weights(self, name: str) -> DeviceWeights[Any]:
        """Return the weights that have a tensor."""
        return self._weights if name.startswith("blk.") else self._tables

    def matrix(self, name: str) -> Any:
        """Return a matrix; small projections of linear attention as float16."""
        if name in self._shared:
            return self._shared[name]
        weights = self.weights(name)
        return weights.halves(name) if name.endswith(("ssm_alpha.weight", "ssm_beta.weight")) else weights.matrix(name)

    def vector(self, name: str, *, scale: float = 1.0) -> GpuArray:
        """Return a small tensor, times `scale`."""
        return self.weights(name).vector(name, scale=scale)

    def scaled(self, buffer: Buffer) -> None:
        """Note that a buffer holds its values times `INNER_SCALE`."""
        self._scaled.add(buffer)

    def scale(self, buffer: Buffer) -> float:
        """Return the factor of products with a buffer."""
        return 1 / INNER_SCALE if buffer in self._scaled else 1.0

    def follower(self, op: Op) -> Norm | None:
        """Return the norm of the residual stream that an op is; None for other ops."""
        return self.norms.get(op.out) if isinstance(op, ops.RmsNormOp) else None

    def norm(self, op: ops.RmsNormOp, *, first: bool) -> Norm:
        """Return a norm of the residual stream that a multiply reads."""
        gain = self.vector(op.gain or "", scale=op.scale)
        if hasattr(self.space, "whole"):  # convolutions stand between the multiplies, and read it as float32
            return RmsNorm(self[op.x], gain, self.eps, half=self[op.out], full=self.space.whole)
        if self.layered:
            return RmsNorm(self[op.x], gain, self.eps, half=self[op.out])
        return self.make.norm(self.space, gain, self.eps, first=first)


class Made(NamedTuple):
    """An op, or fused op, with its launches; none if its neighbours carry it."""

    op: Op
    steps: Sequence[Step]


def steps_of(part: Iterable[Made]) -> list[Step]:
    """Return all launches of some ops."""
    return [step for made in part for step in made.steps]


class Launches(NamedTuple):
    """Launches of a program: before the first layer, of each layer, and after the last one."""

    start: list[Made]
    blocks: list[list[Made]]
    end: list[Made]

    @classmethod
    def of(cls, program: Program, on: Device, layers: range | None = None, *, last: Norm | None = None) -> "Launches":
        """Bind a program, or the part of it that runs some of its layers."""
        start, *every, end = ([op for op in fused(part) if not isinstance(op, ops.CaptureOp)] for part in program.parts())
        layers = range(len(every)) if layers is None else layers
        on.stream = next((op.x for op in every[0] if isinstance(op, ops.RmsNormOp)), on.stream)
        on.halves = {op.x for part in every for op in part if isinstance(op, ops.LinearOp | ops.GatedLinearOp)}
        starts = _bound([op for op in start if layers.start == 0 or isinstance(op, ops.RotationOp)], on, None)
        ends = _bound(end if layers.start == 0 else [], on, None)
        # the norm of the next layer follows the last one, wherever that layer runs
        for i in range(layers.start, min(layers.stop + 1, len(every))):
            on.enter(i)
            for pair in pairwise(every[i]):
                match pair:
                    case ops.RmsNormOp() as op, ops.LinearOp(x=x) | ops.GatedLinearOp(x=x) if (
                        x is op.out and op.x is on.stream
                    ):
                        on.norms[x] = on.norm(op, first=i == 0 and op is every[0][0])
        blocks, early = list[list[Made]](), set[Buffer]()
        for i in layers:
            on.enter(i)
            following = every[i + 1] if on.make.reads_early and i + 1 in layers else []
            heads = [op.norm.out for op in following if isinstance(op, fusions.DeltaMixerOp)]
            on.early, on.clears = early, on[heads[0]] if heads else None
            blocks.append(_bound(every[i], on, on.follower(every[i + 1][0]) if i + 1 < len(every) else last))
            match blocks[-1]:
                case [*_, Made(_, [DecodeMoe(publishes=True)])]:
                    early = {op.out for op in following[:1] if isinstance(op, ops.RmsNormOp)} | set(heads)
                case _:
                    early = set()
        return cls(starts, blocks, ends)


def _bound(part: Sequence[Op], on: Device, last: Norm | None) -> list[Made]:
    """Return the launches of neighbouring ops, which `last` follows."""
    followers = [*(on.follower(op) for op in part[1:]), last]
    return [Made(op, launch(op, on, norm)) for op, norm in zip(part, followers, strict=False)]


@singledispatch
def launch(op: Op, on: Device, output_norm: Norm | None) -> Sequence[Step]:  # noqa: ARG001
    """Return the launches of an op; `output_norm` is that of the residual stream that follows it directly."""
    raise TypeError(f"{type(op).__name__} is no op of a GPU")


@launch.register
def _(op: ops.EmbedOp, on: Device, _: Norm | None) -> Sequence[Step]:
    return (Embed(on.make.batch.tokens, on.matrix(op.table), on[op.out], scale=op.scale),)


@launch.register
def _(op: ops.RotationOp, on: Device, _: Norm | None) -> Sequence[Step]:
    cos, sin = (on[out] for out in op.outs)
    return (Angles(on.make.batch.position, device.array(op.inv_freq), cos, sin, gain=op.gain),)


@launch.register
def _(op: ops.RmsNormOp, on: Device, _: Norm | None) -> Sequence[Step]:
    if op.out in on.norms:
        norm = on.norms[op.out]
        return (norm,) if isinstance(norm, RmsNorm) else ()
    gain = on.vector(op.gain or "", scale=op.scale)
    if op.out.name == "hidden":
        return (RmsNorm(on[op.x], gain, on.eps, half=on.space.wanted, full=on.space.hidden),)
    x, out = on.named(op.x), on.named(op.out)
    if op.out is on.stream:
        return (RmsNorm(x, gain, on.eps, half=out, full=on.space.stream),)
    return (RmsNorm(x, gain, on.eps, **{"full" if op.x is op.out else "half": out}),)


@launch.register
def _(op: ops.LinearOp, on: Device, output_norm: Norm | None) -> Sequence[Step]:
    x, weights, outs = on[op.x], [on.matrix(name) for name in op.weights], [on[out] for out in op.outs]
    around: dict[str, Any] = {"add": True, "output_norm": output_norm} if op.add else {"input_norm": on.norms.get(op.x)}
    return (on.make.multiply(x, weights, outs, **around, early=op.x in on.early, scale=on.scale(op.x)),)


@launch.register
def _(op: ops.GatedLinearOp, on: Device, _: Norm | None) -> Sequence[Step]:
    on.scaled(op.out)
    weights = [on.matrix(op.gate), on.matrix(op.up)]
    return (on.make.multiply(on[op.x], weights, [on[op.out]], gated=True, gelu=op.gelu, input_norm=on.norms.get(op.x)),)


@launch.register
def _(op: fusions.DeltaMixerOp, on: Device, _: Norm | None) -> Sequence[Step]:
    conv, delta, norm = op.conv, op.delta, op.norm
    inputs = Inputs(on[conv.x], on[norm.gate], on[delta.alpha], on[delta.beta], on[norm.out])
    ssm_a, ssm_dt, gain = (on.vector(name) for name in (delta.ssm_a, delta.dt_bias, norm.gain))
    weights = MixerWeights(on.weights(conv.taps).taps(conv.taps), ssm_a, ssm_dt, gain, on.eps)
    memory, layer = (on.memory.conv[conv.layer], on.memory.delta[delta.layer]), list(on.memory.delta).index(delta.layer)
    return (on.make.delta(inputs, weights, memory, layer=layer),)


def _rotate(op: ops.RotateOp, on: Device, query: GpuArray, rotated: GpuArray, bias: Sequence[str]) -> Rotate:
    """Return the launch that rotates these queries and appends keys and values."""
    cache = on.memory.caches[op.layer]
    assert on.config is not None, "a target model, or a head"
    key, value = (None if each is None else on[each] for each in (op.key, op.value))
    q_norm, k_norm = (
        None if name is None else on.vector(name, scale=scale) for name, scale in zip(op.gains, (op.scale, 1.0), strict=True)
    )
    settings: dict[str, Any] = {"value_norm": on.config.blocks.unscaled, "k": cache[0], "v": cache[1]}
    settings["bias"] = on.weights(bias[0]).joined(bias) if bias else None
    inputs = query, key, value, q_norm, k_norm, *(on[each] for each in op.angles), on.make.batch
    return Rotate(*inputs, eps=on.eps, q=rotated, **settings)


@launch.register
def _(op: ops.RotateOp, on: Device, _: Norm | None) -> Sequence[Step]:
    """Keys and values alone are appended: nothing attends."""
    keys, n = on.memory.caches[op.layer][0], on.space.n_rows
    dtype = np.float32 if keys.dtype == np.float32 else np.uint16
    rotated = device.empty(n, 0, op.out.shape[1], dtype=dtype)
    return (_rotate(op, on, device.empty(n, 0), rotated, op.bias[1:]),)


@launch.register
def _(op: fusions.RotateAttendOp, on: Device, _: Norm | None) -> Sequence[Step]:
    rotate, cache = op.rotate, on.memory.caches[op.rotate.layer]
    rotated = on[rotate.out].reshape(on.space.n_rows, *rotate.out.shape)
    turn = _rotate(rotate, on, on[rotate.query], rotated, rotate.bias)
    attended = on[op.attend.out]
    if on.layered:
        unpacks, window = on.make.prefill and is_quantized(cache[0]), op.attend.window
        if window or rotate.out.shape[1] > _TILED or unpacks:
            return turn, AttendRows(rotated, *cache, on.make.batch, attended, window=window)
        return turn, on.make.attention(rotated, cache, attended, None)
    attend = on.make.attention(rotated, cache, attended, None if op.attend.gate is None else on[op.attend.gate])
    of_row = on.make.attention_of_row(turn, attend)

    def run(n: int) -> None:
        if n == 1 and of_row:
            of_row()
        else:
            turn(n)
            attend(n)

    return (run,)


@launch.register
def _(op: ops.HeadGateOp, on: Device, _: Norm | None) -> Sequence[Step]:
    return (HeadGate(on[op.gate], on[op.out]),)


@launch.register
def _(op: fusions.NormedExpertsOp, on: Device, output_norm: Norm | None) -> Sequence[Step]:
    """The norm is part of the launch. Experts that store their output find zeros in it, which `AddNorm` leaves there."""
    assert on.config is not None and op.norm.gain is not None
    made, prefix = op.experts, op.experts.prefix
    weights, stream, gain = on.weights(prefix), on[op.norm.x], on.vector(op.norm.gain)
    if op.router is None:
        moe = experts_of(weights, on.config, prefix, router=weights.plain)
        return (on.make.experts(stream, gain, moe, on.eps, output_norm=output_norm, clears=on.clears),)
    scale, router_gain = op.router.scale, op.router.gain or ""
    moe = experts_of(weights, on.config, prefix, router=lambda name: weights.scaled(name, router_gain, scale))
    kind = MoeKind(gelu=made.gelu, factors=on.vector(made.factors or ""), own_gain=True, out=on[made.out])
    return (on.make.experts(stream, gain, moe, on.eps, output_norm=None, kind=kind),)


@launch.register
def _(op: fusions.AddNormOp, on: Device, _: Norm | None) -> Sequence[Step]:
    norm, by = op.norm, float(on.weights(op.by).host.vector(op.by)[0]) if isinstance(op.by, str) else op.by
    of_experts = norm.x.name == "expert_out"
    return (AddNorm(on[norm.x], on.vector(norm.gain or ""), on.eps, on[op.out], scale=by, clear=of_experts),)


@launch.register
def _(op: fusions.PairLinearOp, on: Device, _: Norm | None) -> Sequence[Step]:
    left, right = zip(*(on.weights(name).columns(name, 2) for name in op.linear.weights), strict=True)
    x, other = (on.named(half) for half in op.halves)  # one of them may begin the stream
    outs = [on[out] for out in op.linear.outs]
    return on.make.multiply(x, left, outs), on.make.multiply(other, right, outs, add=True)


@launch.register
def _(op: fusions.LayerEmbeddingsOp, on: Device, _: Norm | None) -> Sequence[Step]:
    """The multiply reads the embeddings as float16, without the factor that the stream has."""
    out, token, by = on[op.norm.out], on[op.embed.out], op.scale.by
    assert isinstance(by, float)
    return (
        Embed(on.make.batch.tokens, on.matrix(op.embed.table), token, scale=op.embed.scale),
        Halve(on[op.linear.x], on.space.normed, scale=by),
        on.make.multiply(on.space.normed, [on.matrix(op.linear.weights[0])], [out]),
        LayerEmbeddings(out, token, on.vector(op.norm.gain or ""), on.eps),
    )


@launch.register
def _(op: fusions.LayerGateOp, on: Device, _: Norm | None) -> Sequence[Step]:
    """The stream may be too large for float16, so that the gate is computed from its rows over their RMS."""
    x, normed, (gate,), last = on[op.linear.x], on.space.normed, op.linear.outs, op.gate
    on.scaled(last.out)
    return (
        RmsNorm(x, device.array(np.ones(x.shape[1], np.float32)), on.eps, half=normed),
        on.make.multiply(normed, [on.matrix(op.linear.weights[0])], [on[gate]]),
        GeluGate(x, on.eps, on[gate], on[last.values], last.start, on[last.out]),
    )


@launch.register
def _(op: ops.BlockConvOp, on: Device, _: Norm | None) -> Sequence[Step]:
    assert on.draft is not None
    x = on.space.whole if op.x.name == "normed" else on[op.x]
    return (BlockConv(x, on[op.change], on.vector(op.base), each=on.draft.each, side=op.side, out=on[op.out]),)


@launch.register
def _(op: fusions.BlockRotateAttendOp, on: Device, _: Norm | None) -> Sequence[Step]:
    attend, draft, rotated = op.attend, on.draft, on.space.rotated
    assert draft is not None
    inputs = on[attend.query], on[attend.key], on[attend.value], on.vector(op.query.gain), on.vector(op.key.gain)
    cos, sin = (on[each] for each in op.query.angles)
    turn = Rotate(*inputs, cos, sin, draft.own, eps=on.eps, q=rotated, k=draft.k, v=draft.v)
    k, v = (pages.reshape(-1, *pages.shape[2:])[: on.space.n_rows] for pages in (draft.k, draft.v))
    settings: dict[str, Any] = {"window": attend.window, "causal": attend.causal, "workspace": draft.workspace}
    rings, out = on.memory.caches[attend.layer], on[attend.out]
    block_attend = BlockAttend(rotated, k, v, *rings, draft.blocks, **settings, out=out)
    return turn, lambda n: block_attend(n, n_sequences=n // draft.each)
