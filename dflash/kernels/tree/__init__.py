"""Guesses as a tree: the chain of the likeliest, then whatever prefix is likeliest. On a GPU also laid out and walked."""

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.arrays import check
from dflash.kernels.tree import cpu

Ids = NDArray[np.int32]
Floats = NDArray[np.float32]


def grow(ids: Ids, scores: Floats, edges: Floats | None = None, *, tokens: Ids, parents: Ids) -> int:
    """Grow a tree over candidates of the next positions.

    Parameters
    ----------
    ids : int32 (D, K)
        Tokens of each position; -1 where there are fewer.
    scores : float32 (D, K)
        Log-probabilities, descending; minus infinity where there are fewer.
    edges : float32 (D, K, K), optional
        ``edges[t, i, j]`` is that of candidate j after candidate i of the position before, and takes the place of `scores`;
        position 0 looks at ``edges[0, 0]``. Any order; minus infinity or NaN where j can't follow.
    tokens : int32 (N,)
        The first ones become the tokens of the tree.
    parents : int32 (N,)
        And these the nodes above them, -1 under the root. Parents come before children.

    Returns
    -------
    int
        How many nodes there are; less than N only if there are no more.

    Raises
    ------
    KernelError
        If an array is strided or of another type or shape.

    Notes
    -----
    The chain that takes the best candidate at each position comes first, as far as N goes. Then, again and again, the node
    with the largest weight is added of those whose parents are in; the weight is the sum of scores from the root, in
    float64. Of equals the one that was found first: the siblings of the chain, from the root down, then of each new node its
    next sibling and its first child. Without the chain this gives the N likeliest prefixes.

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
