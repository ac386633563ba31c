"""What is asked of a row of logits: its largest, its sum, and a token drawn from it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash.errors import KernelError
from dflash.kernels.arrays import check
from dflash.kernels.sample import cpu
from dflash.kernels.sample.candidates import POOL
from dflash.kernels.sample.candidates import candidates as find_candidates
from dflash.kernels.sample.params import (
    NO_OFFSETS,
    HostSampleResult,
    LogitEdits,
    Offsets,
    SampleParams,
    SampleRequest,
    SampleResult,
    Top,
    sample_one,
    signed,
    top_of,
)
from dflash.kernels.sample.top_k import top_k as find_top
from dflash.kernels.sample.top_p import nucleus as find_nucleus

__all__ = [
    "NO_OFFSETS",
    "POOL",
    "LogitEdits",
    "Offsets",
    "SampleParams",
    "SampleRequest",
    "SampleResult",
    "Top",
    "argmax",
    "candidates",
    "gumbel",
    "likely",
    "log_sum_exp",
    "nucleus",
    "sample",
    "sample_among",
    "sample_one",
    "sample_rows",
    "top_k",
    "top_of",
]

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]

_OWN_NAMES = np.empty(0, np.int32)


def sample_rows(logits: Any, requests: Sequence[SampleRequest]) -> SampleResult:
    """Begin to draw tokens from some rows, each by its law.

    Parameters
    ----------
    logits : float32 (R, V), or Logits
        In the memory of the CPU, or `sample.cuda.Logits`, which stay on the device.
    requests : sequence of SampleRequest
        Of different rows.

    Returns
    -------
    SampleResult
        A token is a function of its row, its law and its position alone. The CPU makes them as they are looked at, a GPU
        makes all of them at once.
    """
    return HostSampleResult(logits, requests) if isinstance(logits, np.ndarray) else logits.sample_rows(requests)


def argmax(logits: Floats, allowed: NDArray[np.bool_] | None = None, *, out: Ids) -> None:
    """Find the largest logit of each row; of equals the lowest id.

    Parameters
    ----------
    logits : float32 (R, V)
    allowed : bool (R, V), optional
        Tokens that may be chosen; all if None.
    out : int32 (R,)
        The ids; -1 where every logit is NaN, minus infinity or not allowed.

    Raises
    ------
    KernelError
        If an array is strided or of another type or shape.
    """
    check("logits", logits, logits.shape, np.float32)
    check("out", out, logits.shape[:1], np.int32)
    if allowed is not None:
        check("allowed", allowed, logits.shape, np.bool_)
        cpu.argmax_allowed(logits, allowed, out)
    else:
        cpu.argmax(logits, out)


def top_k(row: Floats, *, ids: Ids, values: Floats) -> None:
    """Find the K largest logits, largest first, lower ids first among equals.

    Parameters
    ----------
    row : float32 (V,)
    ids : int32 (K,)
        K from 1 to V; -1 where there is nothing more above minus infinity.
    values : float32 (K,)
        Their logits.

    Raises
    ------
    KernelError
        If an array is strided or of another type or shape, or K is out of range.
    """
    check("row", row, row.shape, np.float32)
    check("ids", ids, values.shape, np.int32)
    check("values", values, values.shape, np.float32)
    if not 1 <= len(ids) <= len(row):
        raise KernelError(f"ids: must have room for 1 to {len(row)} tokens, has for {len(ids)}")
    find_top(row, ids, values)


def log_sum_exp(row: Floats, scale: float = 1.0) -> float:
    """``log(sum(exp(scale * row)))``; a log-probability is a scaled logit minus this.

    Parameters
    ----------
    row : float32 (V,)
    scale : float
        Inverse temperature; above 0.

    Returns
    -------
    float
        Error below 1e-6 or so; the order of the sum depends on V alone.
    """
    check("row", row, row.shape, np.float32)
    return cpu.log_sum_exp(row, float(scale))


def likely(row: Floats, scale: float, floor: float, *, ids: Ids, scaled: Floats) -> tuple[int, float]:
    """Find the tokens whose scaled logit ``(row - max(row)) * scale`` is not below a floor.

    Parameters
    ----------
    row : float32 (V,)
    scale : float
        Inverse temperature; above 0.
    floor : float
        At most 0.
    ids : int32 (V,)
        The first ones become the tokens found, ascending.
    scaled : float32 (V,)
        And these their scaled logits.

    Returns
    -------
    n : int
        How many were found.
    total : float
        ``sum(exp((row - max(row)) * scale))`` over all of the row.
    """
    check("row", row, row.shape, np.float32)
    check("ids", ids, row.shape, np.int32)
    check("scaled", scaled, row.shape, np.float32)
    return cpu.likely(row, float(scale), float(floor), ids, scaled)


def nucleus(ids: Ids, scaled: Floats, share: float, total: float = 0.0) -> int:
    """Find the fewest tokens, likeliest first, lower ids first among equals, whose weights ``exp(scaled)`` reach a share.

    Parameters
    ----------
    ids : int32 (N,)
        Their order changes: those found come first.
    scaled : float32 (N,)
        Finite, changes with `ids`.
    share : float
        0 finds one; if all do not reach it, all are found.
    total : float, optional
        What it is a share of; the weights given if 0.

    Returns
    -------
    int
        How many; 0 only if N is.

    Notes
    -----
    A few passes over N, no sort, whatever the values are.
    """
    check("ids", ids, scaled.shape, np.int32)
    check("scaled", scaled, ids.shape, np.float32)
    return find_nucleus(ids, scaled, float(share), float(total))


def gumbel(seed: int, position: int, ids: Ids, *, out: Floats) -> None:
    """Give the noise of some tokens at a position of a text.

    Parameters
    ----------
    seed : int
        Its lowest 64 bits count.
    position : int
        0 to 2**32 - 1.
    ids : int32 (N,)
        Tokens; a token has the same noise whichever others are asked for.
    out : float32 (N,)
        Independent draws of the standard Gumbel law, from -3.14 to 22.88.

    Notes
    -----
    ``argmax(log p + noise)`` is a draw from p (Gumbel-max). See `noise` for the generator, Philox4x32-10.
    """
    check("ids", ids, ids.shape, np.int32)
    check("out", out, ids.shape, np.float32)
    cpu.gumbel(signed(seed), position, ids, out)


def sample(row: Floats, scale: float, seed: int, position: int, floor: float = -np.inf) -> int:
    """Draw a token with the noise of `gumbel`.

    Parameters
    ----------
    row : float32 (V,)
    scale : float
        Inverse temperature; above 0.
    seed, position : int
        As for `gumbel`.
    floor : float
        Tokens whose ``(row - max(row)) * scale`` is below it are left out.

    Returns
    -------
    int
        ``argmax((row - max(row)) * scale + noise)``, the lowest id of equals; -1 if there is nothing above minus infinity.

    Notes
    -----
    Noise is made only where it can matter: for logits within 26 temperatures of the largest.
    """
    check("row", row, row.shape, np.float32)
    return cpu.sample(row, float(scale), signed(seed), position, float(floor))


def sample_among(ids: Ids, scaled: Floats, seed: int, position: int, floor: float = -np.inf) -> int:
    """Draw one of a few tokens with the noise of `gumbel`.

    Parameters
    ----------
    ids : int32 (N,)
    scaled : float32 (N,)
        Their logits over the temperature.
    seed, position : int
        As for `gumbel`.
    floor : float
        Tokens whose `scaled` is below it are left out.

    Returns
    -------
    int
        ``ids[argmax(scaled + noise)]``, the lowest id of equals; -1 if there are none. Just what `sample` gives if `scaled`
        is ``(row - max(row)) * scale`` and the other tokens are below its floor.
    """
    check("ids", ids, scaled.shape, np.int32)
    check("scaled", scaled, ids.shape, np.float32)
    return cpu.sample_among(ids, scaled, signed(seed), position, float(floor))


def candidates(
    logits: Floats,
    row_params: Sequence[SampleParams],
    positions: Sequence[int],
    width: int,
    *,
    ids: Ids,
    scores: Floats,
    targets: Ids | None = None,
) -> None:
    """Find what a draft proposes at each of some positions.

    Parameters
    ----------
    logits : float32 (R, V)
        Of the draft.
    row_params : sequence of SampleParams
        How the target draws its own token there, one a row.
    positions : sequence of int
        Of the text, that each row is about; as for `gumbel`.
    width : int
        Candidates a row, 1 to `POOL`.
    ids : int32 (R, width)
        Becomes the likeliest tokens, likeliest first; -1 where there are no more.
    scores : float32 (R, width)
        And these their scores, minus infinity where there are no more.
    targets : int32 (V,), optional
        What is told, and makes noise, in place of each token; of equals the one that stands first comes first.

    Raises
    ------
    KernelError
        If an array is strided or of another type or shape, or the width is out of range.

    Notes
    -----
    Of a law without scale: log-probabilities, lower ids first among equals. Of another: of the `POOL` largest logits those
    that the law's cuts leave, taken as if there were no others; ``x = (logit - max) * scale + noise``, the noise being that
    of the target's draw, and the scores are ``x - log(sum(exp(x)))``. The first candidate is then right as often as two
    draws agree that share their noise.
    """
    n = len(logits)
    check("logits", logits, logits.shape, np.float32)
    if not 1 <= width <= POOL or len(row_params) != n or len(positions) != n:
        laid = f"{len(row_params)} laws, {len(positions)} positions"
        raise KernelError(f"candidates: wanted 1 to {POOL} for each of {n} rows, got {width}, {laid}")
    check("ids", ids, (n, width), np.int32)
    check("scores", scores, (n, width), np.float32)
    names = _OWN_NAMES if targets is None else targets
    check("targets", names, names.shape if targets is None else logits.shape[1:], np.int32)
    reals = np.array([(params.scale or 0.0, params.top_p, params.floor) for params in row_params]).reshape(n, 3).T.copy()
    pairs = zip(row_params, positions, strict=True)
    whole = np.array([(params.top_k, signed(params.seed), at) for params, at in pairs], np.int64).reshape(n, 3).T.copy()
    find_candidates(logits, reals[0], whole[0], reals[1], reals[2], whole[1], whole[2], names, ids, scores)
