"""Programs as tables: each op, and the kernels that run it for some numbers of rows."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from dflash.kernels.joined import MAX_ROWS
from dflash.kernels.linear import path_of
from dflash.model.config import Config
from dflash.model.network import ops
from dflash.model.network.ops import Buffer, Op
from dflash.model.network.target import target
from dflash.model.run.cpu import Host
from dflash.model.run.joined import groups
from dflash.model.run.memory import NO_MEMORY
from dflash.model.weights import Weights

if TYPE_CHECKING:
    from dflash.model.cuda.model import DeviceModel
    from dflash.model.run.cuda import Made

PROMPT = 512
"""Rows that stand for a prompt."""


class ListedOp(NamedTuple):
    """An op, and the kernels that run it for each number of rows."""

    op: str
    kernels: tuple[str, ...]


class Part(NamedTuple):
    """Ops before the layers, of `layers` that are alike, or after them."""

    layers: tuple[int, ...]
    lines: tuple[ListedOp, ...]


def host_listing(weights: Weights, config: Config, rows: Sequence[int]) -> list[Part]:
    """Return the program of a target on the CPU; reads no weights and compiles nothing."""
    network = target(config, weights)
    program, head = network.program, "token_embd.weight" if config.tied else "output.weight"
    host = Host(program, weights, NO_MEMORY, 0, eps=config.norm_eps)
    program.do(ops.LinearOp(network.hidden, (head,), (Buffer("logits", (config.n_vocab,)),), "head"))
    joined = {id(op) for joins, group in groups(program.ops, host, divided=False) if joins for op in group}

    def kernel(op: Op, n: int) -> str:
        names = op.weights if isinstance(op, ops.LinearOp) else ()
        names = (op.gate, op.up) if isinstance(op, ops.GatedLinearOp) else names
        kinds = dict.fromkeys(weights.matrix(name).type for name in names)
        how = ", ".join(f"{kind} {path_of(kind, n)}" for kind in kinds)
        return " ".join(filter(None, ("joined" if n <= MAX_ROWS and id(op) in joined else "alone", how)))

    return _alike(
        [[ListedOp(str(op), tuple(kernel(op, n) for n in rows)) for op in _runs(part)] for part in program.parts()]
    )


def device_listing(model: "DeviceModel", rows: Sequence[int]) -> list[Part]:
    """Return the fused program of a loaded target on its GPU, with what is launched for each op; runs nothing."""
    from dflash.kernels.gpu.launch import recorded

    def line(same: "Sequence[Made]") -> ListedOp:
        launched = (recorded(made.steps, n) for made, n in zip(same, rows, strict=True))
        return ListedOp(str(same[0].op), tuple(" + ".join(each) or "in its neighbours" for each in launched))

    parts = zip(*([made.start, *made.blocks, made.end] for made in map(model.made, rows)), strict=True)
    return _alike([[line(same) for same in zip(*part, strict=True)] for part in parts])


def _runs(part: Sequence[Op]) -> list[Op]:
    return [op for op in part if not isinstance(op, ops.CaptureOp)]


def _alike(parts: Sequence[Sequence[ListedOp]]) -> list[Part]:
    """Return the parts, those of equal layers as one."""
    start, *layers, end = map(tuple, parts)
    alike = {lines: tuple(i for i, each in enumerate(layers) if each == lines) for lines in layers}
    return [Part((), start), *(Part(which, lines) for lines, which in alike.items()), Part((), end)]
