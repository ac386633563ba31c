"""Ops of a network and the buffers between them: what is computed, without arrays, weights or devices.

An op names its weights as the file does, and the layer whose memory it uses. Fields `out` and `outs` are written, all other
buffers are read.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import dataclass_transform

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Buffer:
    """Rows between ops.

    kept: whether the rows are an input or an output of the program; others are valid from their first to their last op.
    """

    name: str
    shape: tuple[int, ...]
    kept: bool = False

    @property
    def width(self) -> int:
        """Number of elements of a row."""
        return math.prod(self.shape)


Angles = tuple[Buffer, Buffer]
"""Cosines and sines (R,) of a rotation."""


@dataclass_transform(frozen_default=True, eq_default=False)
class Op:
    """One step of a program; subclasses are frozen dataclasses."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, eq=False)(cls)

    def buffers(self) -> Iterator[Buffer]:
        """Yield the buffers that the op reads or writes."""
        for value in vars(self).values():
            yield from (each for each in (value if isinstance(value, tuple) else (value,)) if isinstance(each, Buffer))

    def __str__(self) -> str:
        """Return the op as a formula, ``outputs = op(inputs)``, with the names of tensors within their layer."""
        inputs, outputs = self._terms()
        kind = re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__.removesuffix("Op")).lower()
        return f"{', '.join(outputs)} {'+=' if getattr(self, 'add', False) else '='} {kind}({', '.join(inputs)})"

    def _terms(self) -> tuple[list[str], list[str]]:
        """Return the names of what the op, or the ops that it is made of, reads and writes."""
        inputs, inner, outputs = list[str](), list[str](), list[str]()
        for name, value in vars(self).items():
            for each in value if isinstance(value, tuple) else (value,):
                if isinstance(each, Op):
                    more, made = each._terms()
                    inputs += [term for term in more if term not in inner]
                    inner += made
                elif isinstance(each, Buffer):
                    (outputs if name in ("out", "outs") else inputs).append(each.name)
                elif isinstance(each, str) and name != "label":
                    inputs.append(re.sub(r"^blk\.\d+\.|\.weight$", "", each) or "experts")
        return inputs, outputs or inner[-1:]


class EmbedOp(Op):
    """``out = table[token] * scale``."""

    table: str
    out: Buffer
    scale: float = 1.0


class RotationOp(Op):
    """``outs = gain * cos(position * inv_freq), gain * sin(position * inv_freq)``."""

    inv_freq: NDArray[np.float32]
    gain: float
    outs: Angles


class RmsNormOp(Op):
    """``out = x / sqrt(mean(x ** 2) + eps) * gain * scale`` over groups of `size` elements; no `gain` is a gain of 1."""

    x: Buffer
    gain: str | None
    size: int
    scale: float
    out: Buffer


class LinearOp(Op):
    """``out = x @ W.T`` for each weight, or ``out +=``; `label` is its name in profiles."""

    x: Buffer
    weights: tuple[str, ...]
    outs: tuple[Buffer, ...]
    label: str
    add: bool = False


class GatedLinearOp(Op):
    """``out = silu(x @ gate.T) * (x @ up.T)``, or with GELU."""

    x: Buffer
    gate: str
    up: str
    gelu: bool
    out: Buffer


class ConvOp(Op):
    """The convolution of linear attention; see `dflash.kernels.conv`."""

    x: Buffer
    taps: str
    layer: int
    out: Buffer


class DeltaOp(Op):
    """The gated delta rule, ``out`` (H, V); see `dflash.kernels.delta`."""

    x: Buffer
    alpha: Buffer
    beta: Buffer
    ssm_a: str
    dt_bias: str
    layer: int
    out: Buffer


class GatedNormOp(Op):
    """``out = rms(x) * gain * silu(gate)`` for each head of `x` (H, V)."""

    x: Buffer
    gate: Buffer
    gain: str
    out: Buffer


class RotateOp(Op):
    """Norm and rotate query heads to `out` (H, D), and keys, which are appended with the values to the layer's cache.

    gains: of the norms of query and key heads; None for no norm. Those of queries are multiplied by `scale`.
    bias: added to the projections; none in most architectures.
    key, value: None in a layer that reads the cache of another one.
    """

    query: Buffer
    key: Buffer | None
    value: Buffer | None
    gains: tuple[str | None, str | None]
    scale: float
    bias: tuple[str, ...]
    angles: Angles
    layer: int
    out: Buffer


class AttendOp(Op):
    """Softmax attention over a layer's cache, its last `window` positions if not 0, times the sigmoid of a `gate`."""

    query: Buffer
    layer: int
    window: int
    gate: Buffer | None
    out: Buffer


class HeadGateOp(Op):
    """``out *= softplus(gate)``, one gate for each head or for each element."""

    gate: Buffer
    out: Buffer


class ExpertsOp(Op):
    """The experts of a block, whose tensors begin with `prefix`; see `dflash.kernels.moe`.

    factors: factors of the shares of experts, or None.
    """

    x: Buffer
    router_x: Buffer
    prefix: str
    factors: str | None
    gelu: bool
    out: Buffer
    add: bool = False


class AddOp(Op):
    """``out += x``."""

    x: Buffer
    out: Buffer

    def __str__(self) -> str:
        return f"{self.out.name} += {self.x.name}"


class ScaleOp(Op):
    """``out *= by``, a number or the name of a tensor of one element."""

    by: float | str
    out: Buffer

    def __str__(self) -> str:
        return f"{self.out.name} *= {', '.join(self._terms()[0]) or f'{self.by:.6g}'}"


class CopyOp(Op):
    """``out = x``, several side by side."""

    x: tuple[Buffer, ...]
    out: Buffer


class GeluGateOp(Op):
    """``out = gelu(gate) * values[start : start + width of gate]``."""

    gate: Buffer
    values: Buffer
    start: int
    out: Buffer


class CaptureOp(Op):
    """The point at which `x` is the output of a layer, for callers that want it."""

    layer: int
    x: Buffer


class TurnOp(Op):
    """Norm and rotate heads (H, D) of a draft model, in place."""

    gain: str
    angles: Angles
    out: Buffer


class BlockAttendOp(Op):
    """Attention of a draft model's blocks over the layer's ring and the block; see `dflash.kernels.block_attention`."""

    query: Buffer
    key: Buffer
    value: Buffer
    layer: int
    window: int
    causal: bool
    out: Buffer


class BlockConvOp(Op):
    """The convolution of a draft model's block on one side of a sublayer; see `dflash.kernels.block_conv`."""

    x: Buffer
    change: Buffer
    base: str
    side: int
    out: Buffer
    add: bool = False
