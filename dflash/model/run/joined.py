"""Programs of few rows on the CPU: ops joined to few parallel launches, with the bits of one op after another."""

from collections.abc import Callable, Sequence
from functools import partial, singledispatch
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from dflash.kernels import conv
from dflash.kernels.joined import Joined
from dflash.kernels.linear import PackedLinear
from dflash.model.network import ops
from dflash.model.network.ops import Op
from dflash.model.network.program import Program
from dflash.model.run.cpu import Batch, Host, Step, bind

Floats = NDArray[np.float32]
Join = Callable[[Joined], None]
"""Adds an op to a launch."""

DIVIDED = 2048
"""Rows times tokens of the longest sequence above which all threads share the pages of a KV head; an estimate of where that
saves more than the extra launches cost."""


class HostPass:
    """A program bound to a host, run op by op or, for few rows, in few launches.

    head: multiply with the output of few rows, part of their last launch.
    """

    def __init__(self, program: Program, host: Host, head: PackedLinear | None = None) -> None:
        self._host, self._head = host, head
        self._steps = [(op, self._bound(op)) for op in program.ops]
        self._planned: dict[tuple[tuple[int, ...], bool], list[Step]] = {}
        self._captured: dict[int, Floats] = {}

    def __call__(self, batch: Batch, n: int, capture: tuple[int, ...] = ()) -> dict[int, Floats]:
        """Run op by op; return copies of the outputs of the layers `capture`."""
        return self._run([step for op, step in self._steps if _runs(op, capture)], batch, n)

    def joined(self, batch: Batch, n: int, capture: tuple[int, ...] = ()) -> dict[int, Floats]:
        """Run at most `MAX_ROWS` rows in few launches, planned once for each `capture` and for long and short sequences."""
        key = capture, n * int(batch.rows.length.max()) > DIVIDED
        if key not in self._planned:
            self._planned[key] = self._plan(*key)
        return self._run(self._planned[key], batch, n)

    def _run(self, steps: Sequence[Step], batch: Batch, n: int) -> dict[int, Floats]:
        self._captured = {}
        for step in steps:
            step(batch, n)
        return self._captured

    def _bound(self, op: Op) -> Step:
        if not isinstance(op, ops.CaptureOp):
            return bind(op, self._host)
        layer, x = op.layer, self._host[op.x]

        def capture(_: Batch, n: int) -> None:
            self._captured[layer] = x[:n].copy()

        return capture

    def _plan(self, capture: tuple[int, ...], divided: bool) -> list[Step]:
        """Return the steps of few rows: a launch of neighbouring ops if a multiply is among them, else the ops."""
        parts: list[tuple[Step, Join | None]] = []
        for op, step in self._steps:
            if _runs(op, capture):
                parts.append((step, None if divided and isinstance(op, ops.AttendOp) else join(op, self._host)))
        if (head := self._head) is not None:
            parts.append((lambda _, n: head(n), _product(head)))
        steps = list[Step]()
        for joins, group in groupby(parts, lambda part: part[1] is not None):
            of_group, launch = list(group), Joined(self._host.eps)
            for _, add in of_group if joins else ():
                assert add is not None
                add(launch)
            steps += [partial(_launch, launch)] if launch.multiplies else [step for step, _ in of_group]
        return steps


def _runs(op: Op, capture: tuple[int, ...]) -> bool:
    return not isinstance(op, ops.CaptureOp) or op.layer in capture


def _launch(launch: Joined, batch: Batch, n: int) -> None:
    launch(batch.rows, n, batch.tokens, batch.positions)


@singledispatch
def join(op: Op, host: Host) -> Join | None:  # noqa: ARG001
    """Return how an op is added to a launch; None if it runs between launches."""
    return None


@join.register
def _(op: ops.LinearOp | ops.GatedLinearOp, host: Host) -> Join | None:
    return _product(host.product(op))


def _product(product: PackedLinear) -> Join | None:
    return partial(Joined.linear, product=product) if product.native else None


@join.register
def _(op: ops.EmbedOp, host: Host) -> Join | None:
    table = host.weights.matrix(op.table)
    return (lambda launch: launch.embed(table, host[op.out])) if table.native and op.scale == 1 else None


@join.register
def _(op: ops.RotationOp, host: Host) -> Join | None:
    cos, sin = (host[out] for out in op.outs)
    return (lambda launch: launch.angles(op.inv_freq, cos, sin)) if op.gain == 1 else None


@join.register
def _(op: ops.RmsNormOp, host: Host) -> Join | None:
    whole = op.size == op.x.width
    return (lambda launch: launch.rms_norm(host[op.x], host.gain(op), host[op.out])) if whole else None


@join.register
def _(op: ops.GatedNormOp, host: Host) -> Join:
    return lambda launch: launch.gated_rms_norm(host[op.x], host[op.gate], host.weights.vector(op.gain), host[op.out])


@join.register
def _(op: ops.ConvOp, host: Host) -> Join:
    taps, memory = conv.taps(host.weights.vector(op.taps)), host.memory.conv[op.layer]
    return lambda launch: launch.causal_conv(host[op.x], taps, memory, host[op.out])


@join.register
def _(op: ops.DeltaOp, host: Host) -> Join:
    arrays = host[op.x], host[op.alpha], host[op.beta], host.weights.vector(op.ssm_a), host.weights.vector(op.dt_bias)
    return lambda launch: launch.gated_delta(*arrays, host.memory.delta[op.layer], host[op.out])


@join.register
def _(op: ops.RotateOp, host: Host) -> Join | None:
    if op.key is None or op.value is None:
        return None
    projected, (k, v) = (host[op.query], host[op.key], host[op.value]), host.memory.caches[op.layer]
    tables = host[op.angles[0]], host[op.angles[1]]
    return lambda launch: launch.rotate(*projected, host.head_weights(op), tables, q=host[op.out], k=k, v=v)


@join.register
def _(op: ops.AttendOp, host: Host) -> Join | None:
    (k, v), gate = host.memory.caches[op.layer], None if op.gate is None else host[op.gate]
    return None if op.window else (lambda launch: launch.attend(host[op.query], k, v, out=host[op.out], gate=gate))
