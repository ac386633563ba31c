"""Programs of few rows on the CPU: ops joined to few parallel launches, with the bits of one op after another."""

from collections.abc import Callable, Iterator, Sequence
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
from dflash.model.run.cpu import Batch, HeadOp, Host, Step, bind
from dflash.model.run.rules import applies

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
        self._host, self._head = host, [] if head is None else [HeadOp(head)]
        self._captured: dict[int, Floats] = {}
        self._steps = [(op, self._bound(op)) for op in program.ops]
        self._planned: dict[tuple[tuple[int, ...], bool], list[Step]] = {}
        self._joins = applies("joined")

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
        for step in steps:
            step(batch, n)
        found = self._captured.copy()
        self._captured.clear()
        return found

    def _bound(self, op: Op) -> Step:
        if not isinstance(op, ops.CaptureOp):
            return bind(op, self._host)
        layer, x, captured = op.layer, self._host[op.x], self._captured  # not `self`: a cycle would keep the weights

        def capture(_: Batch, n: int) -> None:
            captured[layer] = x[:n].copy()

        return capture

    def _plan(self, capture: tuple[int, ...], divided: bool) -> list[Step]:
        """Return the steps of few rows."""
        bound, steps = dict(self._steps), list[Step]()
        program = [op for op, _ in self._steps if _runs(op, capture)]
        for joins, group in groups([*program, *self._head], self._host, divided=divided):
            if joins and self._joins:
                launch = Joined(self._host.eps)
                for op in group:
                    add = join(op, self._host)
                    assert add is not None, "the group joins"
                    add(launch)
                steps.append(partial(_launch, launch))
            else:
                steps += [bound.get(op) or bind(op, self._host) for op in group]
        return steps


def groups(program: Sequence[Op], host: Host, *, divided: bool) -> Iterator[tuple[bool, list[Op]]]:
    """Yield neighbouring ops, and whether they are one launch: those that can join if a multiply is among them.

    divided: threads share the pages of a KV head, which takes launches of its own.
    """

    def joins(op: Op) -> bool:
        return join(op, host) is not None and not (divided and isinstance(op, ops.AttendOp))

    for together, each in groupby(program, joins):
        group = list(each)
        yield together and any(isinstance(op, ops.LinearOp | ops.GatedLinearOp | HeadOp) for op in group), group


def _runs(op: Op, capture: tuple[int, ...]) -> bool:
    return not isinstance(op, ops.CaptureOp) or op.layer in capture


def _launch(launch: Joined, batch: Batch, n: int) -> None:
    launch(batch.rows, n, batch.tokens, batch.positions)


@singledispatch
def join(op: Op, host: Host) -> Join | None:  # noqa: ARG001
    """Return how an op is added to a launch; None if it runs between launches."""
    return None


@join.register
def _(op: ops.LinearOp, host: Host) -> Join | None:
    return (lambda launch: launch.linear(host.product(op))) if host.native(*op.weights) else None


@join.register
def _(op: ops.GatedLinearOp, host: Host) -> Join | None:
    return (lambda launch: launch.linear(host.product(op))) if host.native(op.gate, op.up) else None


@join.register
def _(op: HeadOp, host: Host) -> Join | None:  # noqa: ARG001
    return (lambda launch: launch.linear(op.product)) if op.product.native else None


@join.register
def _(op: ops.EmbedOp, host: Host) -> Join | None:
    joins = host.native(op.table) and op.scale == 1
    return (lambda launch: launch.embed(host.weights.matrix(op.table), host[op.out])) if joins else None


@join.register
def _(op: ops.RotationOp, host: Host) -> Join | None:
    return (lambda launch: launch.angles(op.inv_freq, *(host[out] for out in op.outs))) if op.gain == 1 else None


@join.register
def _(op: ops.RmsNormOp, host: Host) -> Join | None:
    whole = op.size == op.x.width
    return (lambda launch: launch.rms_norm(host[op.x], host.gain(op), host[op.out])) if whole else None


@join.register
def _(op: ops.GatedNormOp, host: Host) -> Join:
    return lambda launch: launch.gated_rms_norm(host[op.x], host[op.gate], host.weights.vector(op.gain), host[op.out])


@join.register
def _(op: ops.ConvOp, host: Host) -> Join:
    def add(launch: Joined) -> None:
        taps = conv.taps(host.weights.vector(op.taps))
        launch.causal_conv(host[op.x], taps, host.memory.conv[op.layer], host[op.out])

    return add


@join.register
def _(op: ops.DeltaOp, host: Host) -> Join:
    def add(launch: Joined) -> None:
        decay = host.weights.vector(op.ssm_a), host.weights.vector(op.dt_bias)
        projected = host[op.x], host[op.alpha], host[op.beta]
        launch.gated_delta(*projected, *decay, host.memory.delta[op.layer], host[op.out])

    return add


@join.register
def _(op: ops.RotateOp, host: Host) -> Join | None:
    if (key := op.key) is None or (value := op.value) is None:
        return None

    def add(launch: Joined) -> None:
        (k, v), tables = host.memory.caches[op.layer], (host[op.angles[0]], host[op.angles[1]])
        projected = host[op.query], host[key], host[value]
        launch.rotate(*projected, host.head_weights(op), tables, q=host[op.out], k=k, v=v)

    return add


@join.register
def _(op: ops.AttendOp, host: Host) -> Join | None:
    def add(launch: Joined) -> None:
        (k, v), gate = host.memory.caches[op.layer], None if op.gate is None else host[op.gate]
        launch.attend(host[op.query], k, v, out=host[op.out], gate=gate)

    return None if op.window else add
