"""Differences of some models' experts on a GPU."""

from typing import Any, NamedTuple

from dflash.errors import KernelError
from dflash.kernels.moe import Experts


class MoeKind(NamedTuple):
    """Differences of some models from `dflash.kernels.moe.Moe`.

    gelu: GELU in its tanh form in place of SiLU.
    factors: float32 (E,), optional; factor of each expert's share after normalisation, on the device.
    own_gain: the router's weights contain its own gain of the norm, in place of that of the experts' inputs.
    out: float32 (T, D), optional; receives the sum in place of the stream, which is only read.
    """

    gelu: bool = False
    factors: Any = None
    own_gain: bool = False
    out: Any = None

    def constants(self, weights: Experts) -> dict[str, dict[str, int]]:
        """Return the macros of the routers, of the kernels that select experts, and of the gate and up projections."""
        if weights.routing is not None and self.factors is not None:
            raise KernelError(f"{weights.gate.name}: experts that sigmoids select can't have factors")
        routing = 2 if weights.routing is not None else 1 if self.factors is not None else 0
        topk = {"ROUTING": routing} if routing else {}
        return {
            "router": {"OWN_GAIN": 1} if self.own_gain else {},
            "topk": topk | ({"SHARED_ROUTER": 0} if weights.shared and weights.shared_router is None else {}),
            "gate_up": {"GELU": 1} if self.gelu else {},
        }

    def selection(self, weights: Experts) -> tuple[Any, float]:
        """Return the table and the scale of topk.cuh."""
        return (self.factors, 1.0) if weights.routing is None else weights.routing


USUAL = MoeKind()
"""No differences."""
