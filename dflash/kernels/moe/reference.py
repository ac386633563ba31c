"""Definition in float64 NumPy: a router, its selected experts, and in some models a shared expert."""

import numpy as np

from dflash.kernels.gelu.reference import gelu as tanh_gelu


def route(logits, n_used, experts, weights):
    """Select the `n_used` most probable experts of each token in descending order; normalise their probabilities."""
    order = np.argsort(-logits, axis=1, kind="stable")[:, :n_used]
    experts[:] = order
    p = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    chosen = np.take_along_axis(p, order, axis=1)
    weights[:] = chosen / chosen.sum(axis=1, keepdims=True)


def route_by_sigmoid(logits, routing, n_used, experts, weights):
    """Select the experts with the largest ``sigmoid(logit) + bias``; normalise their sigmoids to a sum of `scale`."""
    p = 1 / (1 + np.exp(-logits.astype(np.float64)))
    experts[:] = np.argsort(-(p + routing.bias), axis=1, kind="stable")[:, :n_used]
    chosen = np.take_along_axis(p, experts, axis=1)
    weights[:] = chosen / chosen.sum(axis=1, keepdims=True) * routing.scale


def experts(x, weights, out, *, router_x=None, factors=None, gelu=False):
    """Compute ``out += sum_e p_e * down_e(silu(gate_e x) * up_e x) + sigmoid(shared_router x) * shared(x)``.

    A shared expert without a router has a share of 1. For the other arguments see `dflash.kernels.moe.Moe`.
    """
    others = "n_used", "routing"
    given = {name: weight for name, weight in weights._asdict().items() if name not in others and weight is not None}
    unpacked = {name: weight.unpacked().astype(np.float64) for name, weight in given.items()}
    x = x.astype(np.float64)
    chosen, p = np.empty((len(x), weights.n_used), np.int32), np.empty((len(x), weights.n_used))
    logits = (x if router_x is None else router_x.astype(np.float64)) @ unpacked["router"].T
    if weights.routing:
        route_by_sigmoid(logits, weights.routing, weights.n_used, chosen, p)
    else:
        route(logits, weights.n_used, chosen, p)
    if factors is not None:
        p *= factors[chosen]

    def ffn(t, gate, up, down):
        g = gate @ t
        return down @ ((tanh_gelu(g) if gelu else g / (1 + np.exp(-g))) * (up @ t))

    for i, t in enumerate(x):
        if weights.shared_gate is not None:
            shared = ffn(t, unpacked["shared_gate"], unpacked["shared_up"], unpacked["shared_down"])
            out[i] += shared / (1 + np.exp(-(unpacked["shared_router"] @ t))) if "shared_router" in unpacked else shared
        for e, share in zip(chosen[i], p[i], strict=True):
            out[i] += share * ffn(t, *(unpacked[part][e] for part in ("gate", "up", "down")))
