"""Programs: ops in order, made by methods that return what they compute."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple, Protocol

from dflash.model.network import ops
from dflash.model.network.ops import Buffer, Op


class Tensors(Protocol):
    """Names of tensors."""

    def __contains__(self, name: str, /) -> bool:
        """Return whether there is a tensor. Called when a program is built."""


class Names(NamedTuple):
    """Tensor names of one layer, of those in `tensors`."""

    layer: int
    prefix: str
    tensors: Tensors

    def __call__(self, name: str) -> str:
        """Return the whole name of a tensor of the layer."""
        return self.prefix + name

    def has(self, name: str) -> bool:
        """Return whether the layer has a tensor."""
        return self.prefix + name in self.tensors


class Program:
    """Ops over named buffers."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self._starts = list[int]()

    def begin(self) -> None:
        """Begin the next layer, or what follows the last one."""
        self._starts.append(len(self.ops))

    def parts(self) -> list[list[Op]]:
        """Return the ops before the first layer, those of each layer, and those after the last one."""
        return [self.ops[start:stop] for start, stop in pairwise([0, *self._starts, len(self.ops)])]

    def do(self, op: Op) -> None:
        """Append an op."""
        self.ops.append(op)

    def norm(
        self,
        x: Buffer,
        gain: str | None,
        *,
        size: int = 0,
        scale: float = 1.0,
        name: str = "normed",
        kept: bool = False,
        out: Buffer | None = None,
    ) -> Buffer:
        """Append an RMS norm of rows, or of groups of `size` elements."""
        out = out or Buffer(name, x.shape, kept)
        self.do(ops.RmsNormOp(x, gain, size or x.width, scale, out))
        return out

    def linear(self, x: Buffer, weights: Mapping[str, int], label: str, *, kept: bool = False) -> tuple[Buffer, ...]:
        """Append a multiply with weights, of which the numbers of rows are given; return a product for each."""
        outs = tuple(Buffer(name.removesuffix(".weight").rpartition(".")[2], (n,), kept) for name, n in weights.items())
        self.do(ops.LinearOp(x, tuple(weights), outs, label))
        return outs

    def product(self, x: Buffer, weight: str, width: int, label: str) -> Buffer:
        """Append a multiply with one weight."""
        return self.linear(x, {weight: width}, label)[0]

    def gated(self, x: Buffer, gate: str, up: str, width: int, *, gelu: bool = False) -> Buffer:
        """Append a multiply with a gate and an up projection."""
        self.do(ops.GatedLinearOp(x, gate, up, gelu, inner := Buffer("inner", (width,))))
        return inner

    def add(self, stream: Buffer, x: Buffer) -> None:
        """Append ``stream += x``; where the last op computes `x`, it adds instead of storing."""
        last = self.ops[-1]
        if isinstance(last, ops.LinearOp) and last.outs == (x,):
            self.ops[-1] = replace(last, outs=(stream,), add=True)
        elif isinstance(last, ops.ExpertsOp | ops.BlockConvOp) and last.out is x:
            self.ops[-1] = replace(last, out=stream, add=True)
        else:
            self.do(ops.AddOp(x, stream))
