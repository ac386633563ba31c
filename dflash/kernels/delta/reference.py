"""Definition in float64 NumPy, token by token; and the same over a tree by matrix products."""

import numpy as np

from dflash.kernels.cases import BATCHES, Rows


def unit(x):
    """Return ``x / sqrt(sum(x ** 2) + 1e-6)`` over the last axis."""
    return x / np.sqrt((x**2).sum(axis=-1, keepdims=True) + 1e-6)


def gates(alpha, beta, ssm_a, dt_bias):
    """Return the log of the decay, and the write strength, of each token and head."""
    alpha, beta = alpha.astype(np.float64), beta.astype(np.float64)
    return ssm_a * np.logaddexp(0, alpha + dt_bias), 1 / (1 + np.exp(-beta))


def step(state, q, k, v, decay, beta):
    """Compute ``S = decay * S; u = beta * (v - S @ k); S += outer(u, k); o = S @ q``; return u, o and the new state."""
    state = decay * state
    u = beta * (v - state @ k)
    state = state + np.outer(u, k)
    return u, state @ q, state


def gated_delta(y, alpha, beta, ssm_a, dt_bias, batch, memory, *, out):
    """Run the delta rule; each row continues from the state of its parent."""
    apply_accepted(batch.slot, batch.accepted, batch.n_accepted, batch.buffer, memory)
    (_, n_heads, n_values, width), n_groups = memory.state.shape, memory.k.shape[3]
    log_decay, beta = gates(alpha, beta, ssm_a, dt_bias)
    q, k, v = np.split(y.astype(np.float64), (n_groups * width, 2 * n_groups * width), axis=1)
    q, k = (unit(x.reshape(-1, n_groups, width)) for x in (q, k))
    q, v = q * width**-0.5, v.reshape(-1, n_heads, n_values)
    for s, slot in enumerate(batch.slot):
        start, n, buffer = batch.row_starts[s], batch.row_starts[s + 1] - batch.row_starts[s], 1 - batch.buffer[s]
        for head in range(n_heads):
            group, states = head // memory.head_run % n_groups, {-1: memory.state[slot, head].astype(np.float64)}
            for i in range(n):
                row = start + i
                decay = np.exp(log_decay[row, head])
                inputs = (q[row, group], k[row, group], v[row, head], decay, beta[row, head])
                u, out[row, head], states[i] = step(states[batch.parent[row]], *inputs)
                if not batch.prefill[s]:
                    memory.k[buffer, slot, i, group] = k[row, group]
                    memory.u[buffer, slot, i, head], memory.decay[buffer, slot, i, head] = u, decay
            if batch.prefill[s]:
                memory.state[slot, head] = states[n - 1]


def apply_accepted(slot, accepted, n_accepted, buffer, memory):
    """Apply ``S = decay * S + outer(u, k)`` for each accepted row, root first."""
    n_groups = memory.k.shape[3]
    for s, here in enumerate(slot):
        for head, state in enumerate(memory.state[here]):
            for row in accepted[s, : n_accepted[s]]:
                at, group = (buffer[s], here, row), head // memory.head_run % n_groups
                state[:] = memory.decay[at][head] * state + np.outer(memory.u[at][head], memory.k[at][group])


def tree_wy(q, k, v, log_decay, beta, state, parent):
    """Compute one head over a tree: ``(u, o, log_gamma)`` from q, k (N, K), v (N, V) and the state (V, K) at the root.

    With Γ the product of decays from the root down to a row: ``u_a = beta_a (v_a - Γ_a S k_a - sum over b strictly above a
    of (Γ_a / Γ_b) (k_b . k_a) u_b)`` and ``o_a = Γ_a S q_a + sum over b above or equal a of (Γ_a / Γ_b) (k_b . q_a) u_b``.
    """
    n = len(parent)
    above, log_gamma = np.eye(n, dtype=bool), np.array(log_decay)
    for a, p in enumerate(parent):
        if p >= 0:
            above[a] |= above[p]
            log_gamma[a] += log_gamma[p]
    ratio = np.exp(np.where(above, log_gamma[:, None] - log_gamma, -np.inf))
    decay = np.exp(log_gamma)[:, None]
    u = beta[:, None] * (v - decay * (k @ state.T))
    between = beta[:, None] * ratio * (k @ k.T)
    for a in range(n):
        u[a] -= between[a, :a] @ u[:a]
    return u, decay * (q @ state.T) + (ratio * (q @ k.T)) @ u, log_gamma


def state_after(path, k, u, log_gamma, state):
    """Return the state (V, K) after the rows of `path`, root to e: ``Γ_e S + sum over b of (Γ_e / Γ_b) outer(u_b, k_b)``."""
    end = log_gamma[path[-1]]
    weights = np.exp(end - log_gamma[path])
    return np.exp(end) * state + (weights[:, None] * u[path]).T @ k[path]


def cases():
    """Yield names, key heads, value heads, key size, value size, sequences."""
    for name, sequences in BATCHES.items():
        yield name, 2, 4, 32, 32, sequences
    mixture = [
        Rows(13, "tree", slot=2, accepted=(0, 3)),
        Rows(2, accepted=(1,), buffer=1),
        Rows(35, "prefill", slot=1, accepted=(0,)),
    ]
    for heads in (1, 1, 16, 16), (1, 4, 48, 16), (2, 6, 64, 64), (4, 12, 128, 128), (4, 4, 32, 48), (1, 2, 256, 32):
        yield "{} over {} heads, {} x {}".format(heads[1], heads[0], *heads[2:]), *heads, mixture
