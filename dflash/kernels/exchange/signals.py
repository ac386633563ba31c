"""Links of kernels to the other GPUs of a tensor split: where their results go, and which signals they wait for and send."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from dflash.kernels.exchange.cuda import Signals
from dflash.kernels.gpu.jit import kernel

SIGNALS = 1 << 32
"""Signals of one exchange, shared by the blocks of all its launches."""

_SOURCE = Path(__file__).with_name("advance.cu")

Targets = Sequence[Any]
"""For each GPU the columns of a gathered array that this GPU computes: a view with contiguous rows."""


def of_targets(outs: Sequence[Targets], n: int, first_row: int = 0) -> tuple[list[int], list[int]]:
    """Return the part of a table for up to two gathered arrays on `n` GPUs: their strides, and addresses from a row on."""
    none = [None] * n
    both = [*outs, none, none][:2]
    strides = [0 if array is None else array.strides[0] // array.itemsize for array, *_ in both]
    rows = [array for targets in both for array in targets]
    return strides, [0 if array is None else array.data.ptr + first_row * array.strides[0] for array in rows]


class PeerLink:
    """Inputs and outputs of one op on other GPUs; see signals.cuh.

    before: number of exchanges of the pass to wait for; 0 for none.
    outs: up to two gathered arrays that receive the results; none if they stay on this GPU.
    """

    def __init__(self, links: "PeerLinks", before: int, outs: Sequence[Targets]) -> None:
        self.macros, self.sends = {"PEERS": links.n, "RANK": links.rank}, bool(outs)
        self._links, self._before, self._outs = links, before, outs

    def table(self, first_row: int = 0) -> Any:
        """Return the table of a launch whose first row is this one of the arrays."""
        links = self._links
        strides, places = of_targets(self._outs, links.n, first_row)
        counters = [array.data.ptr for array in links.signals.arrived]
        own = [counters[links.rank], links.base.data.ptr, self._before * SIGNALS, *strides]
        return cupy.array(np.array([*own, *counters, *places], np.uint64))


class PeerLinks:
    """Makes the links of the ops of a pass on one GPU, in the order of their launches.

    rank: number of this GPU, which is the current device.
    signals: counters that no other pass uses.
    base: uint64 (1,); signals that each other GPU had sent before the pass.
    """

    def __init__(self, rank: int, signals: Signals) -> None:
        self.rank, self.signals, self.n, self._sent = rank, signals, len(signals.arrived), 0
        self.base = cupy.zeros(1, cupy.uint64)

    def link(self, *outs: Targets, reads: Sequence[Any] = ()) -> PeerLink:
        """Return the link of the next op: it waits for the last exchange if it `reads`, and begins one if it has results."""
        made = PeerLink(self, self._sent if reads else 0, outs)
        self._sent += bool(outs)
        return made

    def restart(self) -> None:
        """Count passes from the first one, as `Signals.restart`."""
        self.base.fill(-self._sent * SIGNALS % (1 << 64))

    def advance(self) -> Any:
        """Return the launch that begins a pass; call this once, after all links were made."""
        total = self._sent * SIGNALS
        self.restart()
        return kernel(_SOURCE, "advance", dependent=True).bind(1, 1, (self.base, total))
