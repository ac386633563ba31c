"""Random experts."""

import numpy as np
from matrices import random_matrix

from dflash.kernels.formats import Matrix
from dflash.kernels.moe import Experts


def stack(n, rows, width, kind):
    return Matrix(np.stack([random_matrix(rows, width, kind).data for _ in range(n)]), kind)


def random_experts(kind="Q4_K", down="Q6_K", n=8, width=256, ffn=256, n_used=3, **other):
    """Experts of `kind`, `down` that of the down-projections; `other` are types by part, and `shared_ffn`, 0 for none."""
    shared_ffn = other.pop("shared_ffn", ffn)
    kinds = dict.fromkeys(("gate", "up", "shared_gate", "shared_up"), kind) | dict.fromkeys(("down", "shared_down"), down)
    kinds |= other
    routed = (
        random_matrix(n, width, "F32"),
        stack(n, ffn, width, kinds["gate"]),
        stack(n, ffn, width, kinds["up"]),
        stack(n, width, ffn, kinds["down"]),
    )
    if not shared_ffn:
        return Experts(*routed, None, None, None, None, n_used)
    return Experts(
        *routed,
        random_matrix(1, width, "F32"),
        random_matrix(shared_ffn, width, kinds["shared_gate"]),
        random_matrix(shared_ffn, width, kinds["shared_up"]),
        random_matrix(width, shared_ffn, kinds["shared_down"]),
        n_used,
    )
