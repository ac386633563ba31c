"""Draft trees: the most probable chain, then the most probable other prefixes; on a GPU also batch layout and acceptance."""

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.arrays import check
from dflash.kernels.tree import cpu

Ids = NDArray[np.int32]
Floats = NDArray[np.float32]


def grow(ids: Ids, scores: Floats, edges: Floats | None = None, *, tokens: Ids, parents: Ids) -> int:
    """Build a draft tree from the candidates of the next positions.

    Parameters
    ----------
    ids : int32 (D, K)
        Candidate tokens of each position; -1 where there are fewer than K.
    scores : float32 (D, K)
        Log-probabilities, descending; minus infinity where there are fewer than K.
    edges : float32 (D, K, K), optional
        Replaces `scores`: ``edges[t, i, j]`` is the log-probability of candidate j after candidate i of the previous
        position. Position 0 uses ``edges[0, 0]``. In any order; minus infinity or NaN if j can't follow i.
    tokens : int32 (N,)
        Its first entries receive the tokens of the nodes.
    parents : int32 (N,)
        Its first entries receive the parent nodes; -1 for children of the root. Parents come before children.

    Returns
    -------
    int
        Number of nodes; less than N only if there are no more candidates.

    Raises
    ------
    KernelError
        If an array is strided or of another type or shape.

    Notes
    -----
    The chain of the best candidate at each position comes first, up to N nodes. Then nodes are added one by one: always the
    node of largest weight whose parent is in the tree. The weight is the float64 sum of scores from the root. Among equals
    the node found first wins: siblings of the chain from the root down, then the next sibling and the first child of each
    new node. Without the chain this gives the N most probable prefixes.

    References
    ----------
    DDTree, arXiv 2604.12989.
    """
    depth, width = scores.shape
    check("scores", scores, (depth, width), np.float32)
    check("ids", ids, (depth, width), np.int32)
    check("tokens", tokens, tokens.shape, np.int32)
    check("parents", parents, tokens.shape, np.int32)
    if edges is None:
        return cpu.grow(ids, scores.reshape(depth, 1, width), tokens, parents)
    check("edges", edges, (depth, width, width), np.float32)
    return cpu.grow(ids, edges, tokens, parents)
