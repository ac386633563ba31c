"""Fusions of neighbouring ops that a GPU runs together."""

from collections.abc import Sequence
from dataclasses import replace

from dflash.model.network import ops
from dflash.model.network.ops import Buffer, Op


class DeltaMixerOp(Op):
    """Convolution, delta rule and gated norm of linear attention."""

    conv: ops.ConvOp
    delta: ops.DeltaOp
    norm: ops.GatedNormOp


class RotateAttendOp(Op):
    """Rotation, with a norm of the values in some architectures, and attention."""

    rotate: ops.RotateOp
    attend: ops.AttendOp


class NormedExpertsOp(Op):
    """Experts with the norm of their input, and that of their router's input if it is another one."""

    norm: ops.RmsNormOp
    experts: ops.ExpertsOp
    router: ops.RmsNormOp | None = None


class AddNormOp(Op):
    """``out = (out + rms(x)) * by``."""

    norm: ops.RmsNormOp
    out: Buffer
    by: float | str = 1.0


class PairLinearOp(Op):
    """A multiply with two arrays side by side."""

    halves: tuple[Buffer, Buffer]
    linear: ops.LinearOp


class LayerEmbeddingsOp(Op):
    """Embeddings of the tokens for all layers."""

    linear: ops.LinearOp
    scale: ops.ScaleOp
    norm: ops.RmsNormOp
    embed: ops.EmbedOp


class LayerGateOp(Op):
    """Multiply and gate of one layer's part of them."""

    linear: ops.LinearOp
    gate: ops.GeluGateOp


class BlockRotateAttendOp(Op):
    """Rotation and attention of a draft model's blocks."""

    query: ops.TurnOp
    key: ops.TurnOp
    attend: ops.BlockAttendOp


def fused(program: Sequence[Op]) -> list[Op]:
    """Return the ops of a program with fused ones in place of their parts."""
    found, at = list[Op](), 0
    while at < len(program):
        op, n = _fused(program[at : at + 6])
        found.append(op)
        at += n
    return found


def _fused(rest: Sequence[Op]) -> tuple[Op, int]:
    """Return the first op or fused op, and the number of ops that it stands for."""
    match rest:
        case [ops.ConvOp() as conv, ops.DeltaOp() as delta, ops.GatedNormOp() as norm, *_]:
            return DeltaMixerOp(conv, delta, norm), 3
        case [ops.RotateOp() as rotate, ops.AttendOp() as attend, *_]:
            return RotateAttendOp(rotate, attend), 2
        case [ops.RmsNormOp(gain=None), ops.RotateOp() as rotate, ops.AttendOp() as attend, *_]:
            return RotateAttendOp(rotate, attend), 3
        case [ops.CopyOp(x=(key,)), ops.RmsNormOp(gain=None), ops.RotateOp() as rotate, ops.AttendOp() as attend, *_]:
            return RotateAttendOp(replace(rotate, value=key), attend), 4
        case [ops.RmsNormOp() as norm, ops.ExpertsOp() as experts, *_] if experts.x is experts.router_x is norm.out:
            return NormedExpertsOp(norm, experts), 2
        case [ops.RmsNormOp() as router, ops.RmsNormOp() as norm, ops.ExpertsOp() as experts, *_]:
            return NormedExpertsOp(norm, experts, router), 3
        case [ops.RmsNormOp() as norm, ops.AddOp() as add, ops.ScaleOp() as scale, *_] if scale.out is add.out:
            return AddNormOp(norm, add.out, scale.by), 3
        case [ops.RmsNormOp() as norm, ops.AddOp() as add, *_]:
            return AddNormOp(norm, add.out), 2
        case [ops.CopyOp(x=(left, right)), ops.LinearOp() as linear, *_]:
            return PairLinearOp((left, right), linear), 2
        case [ops.LinearOp() as linear, ops.ScaleOp() as scale, ops.RmsNormOp() as norm, ops.EmbedOp() as embed, _, _]:
            return LayerEmbeddingsOp(linear, scale, norm, embed), 6
        case [ops.LinearOp() as linear, ops.GeluGateOp() as gate, *_]:
            return LayerGateOp(linear, gate), 2
        case [ops.TurnOp() as query, ops.TurnOp() as key, ops.BlockAttendOp() as attend, *_]:
            return BlockRotateAttendOp(query, key, attend), 3
    return rest[0], 1
