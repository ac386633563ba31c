"""Experts on the CPU: tokens are grouped by expert, so that every selected expert is read once for all its tokens.

The result of a token does not depend on other tokens: its products are those of `linear`, and its experts are summed in
descending order of probability.
"""

import math

import numpy as np
from numba import prange

from dflash.kernels.cpu.jit import inline, kernel
from dflash.kernels.cpu.simd import add, fma, load_f32, mul, splat, store_f32, zeros
from dflash.kernels.linear.cpu import DATA, MODE, OUT, OUT_BYTES, STORE, TOKENS, UP, X_BYTES, X


@inline
def _route_by_sigmoid(logits, bias, scale, n_used, experts, weights):
    """Select the experts with the largest ``sigmoid(logit) + bias``, in descending order; ties go to the lower number."""
    p = np.empty(logits.shape[1], np.float64)
    for t in range(len(logits)):
        for e in range(p.size):
            p[e] = 1.0 / (1.0 + math.exp(-logits[t, e]))
        total = 0.0
        for i in range(n_used):
            best = -1
            for e in range(p.size):
                taken = False
                for j in range(i):
                    taken |= experts[t, j] == e
                if not taken and (best < 0 or p[e] + bias[e] > p[best] + bias[best]):
                    best = e
            experts[t, i] = best
            total += p[best]
        for i in range(n_used):
            weights[t, i] = p[experts[t, i]] / total * scale


@inline
def route(logits, n_used, experts, weights):
    """Select the `n_used` most probable experts of each token in descending order; ties go to the lower number."""
    for t in range(len(logits)):
        for i in range(n_used):
            best = -1
            for e in range(logits.shape[1]):
                taken = False
                for j in range(i):
                    taken |= experts[t, j] == e
                if not taken and (best < 0 or logits[t, e] > logits[t, best]):
                    best = e
            experts[t, i] = best
        total = 0.0
        for i in range(n_used):
            total += math.exp(logits[t, experts[t, i]] - logits[t, experts[t, 0]])
        for i in range(n_used):
            weights[t, i] = math.exp(logits[t, experts[t, i]] - logits[t, experts[t, 0]]) / total


@inline
def route_by(logits, bias, scale, n_used, experts, weights):
    """Select experts by their sigmoid and a bias, or by their probability if there is no bias."""
    if bias.size > 0:
        _route_by_sigmoid(logits, bias, scale, n_used, experts, weights)
    else:
        route(logits, n_used, experts, weights)


@inline
def arrange(
    logits, bias, scale, n_used, experts, weights, place, x, gate_mode, grouped, template, into, down, hidden, product
):
    """Select experts, group the tokens by expert, and plan the launches.

    ``place[t, i]`` is the row of `grouped` of token t for its i-th expert. `template` holds the gate, up and down rows of a
    plan for expert 0, and the bytes from one expert to the next. `into` and `down` receive the plans, two rows and one row
    for each selected expert. Returns the number of selected experts.
    """
    route_by(logits, bias, scale, n_used, experts, weights)
    tokens, n_experts = logits.shape
    start = np.zeros(n_experts + 1, np.int64)
    for t in range(tokens):
        for i in range(n_used):
            start[experts[t, i] + 1] += 1
    for e in range(n_experts):
        start[e + 1] += start[e]
    fill = start[:-1].copy()
    for t in range(tokens):
        for i in range(n_used):
            row = fill[experts[t, i]]
            fill[experts[t, i]] += 1
            place[t, i] = row
            grouped[row] = x[t]
    used = 0
    for e in range(n_experts):
        n = start[e + 1] - start[e]
        if n == 0:
            continue
        for part in range(3):
            plan = down[used] if part == 2 else into[2 * used + part]
            plan[:] = template[part, :-1]
            plan[DATA] += e * template[part, -1]
            plan[TOKENS] = n
            plan[MODE] = STORE if part == 2 else gate_mode if part == 0 else UP
            source = hidden if part == 2 else grouped
            target = product if part == 2 else hidden
            plan[X] = source.ctypes.data + 4 * start[e] * source.shape[1]
            plan[X_BYTES] = 4 * source.shape[1]
            plan[OUT] = target.ctypes.data + 4 * start[e] * target.shape[1]
            plan[OUT_BYTES] = 4 * target.shape[1]
        used += 1
    return used


@inline
def _combine_token(t, weights, place, product, shared_logits, shared, out):
    has_shared = shared.shape[1] > 0
    gate = np.float32(1.0 / (1.0 + math.exp(-shared_logits[t, 0]))) if has_shared else np.float32(0)
    for k in range(0, out.shape[1], 16):
        total = zeros()
        for i in range(weights.shape[1]):
            row = product.ctypes.data + 4 * (place[t, i] * product.shape[1] + k)
            total = fma(splat(weights[t, i]), load_f32(row), total)
        if has_shared:
            total = add(total, mul(splat(gate), load_f32(shared.ctypes.data + 4 * (t * shared.shape[1] + k))))
        at = out.ctypes.data + 4 * (t * out.shape[1] + k)
        store_f32(at, add(load_f32(at), total))


@inline
def combine_few(weights, place, product, shared_logits, shared, out):
    """Add the experts' outputs to the residual stream, on one thread; `shared` has no columns without a shared expert."""
    for t in range(len(weights)):
        _combine_token(t, weights, place, product, shared_logits, shared, out)


@kernel
def combine_many(weights, place, product, shared_logits, shared, out):
    """Add the experts' outputs to the residual stream, on all threads."""
    for t in prange(len(weights)):
        _combine_token(t, weights, place, product, shared_logits, shared, out)
