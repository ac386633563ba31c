"""Operations on rows of logits: largest values, log-sum-exp, and sampling of tokens."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash.errors import KernelError
from dflash.kernels.arrays import check
from dflash.kernels.sample import cpu
from dflash.kernels.sample.candidates import POOL
from dflash.kernels.sample.candidates import candidates as find_candidates
from dflash.kernels.sample.mask import mask_row
from dflash.kernels.sample.params import (
    NO_MASKS,
    NO_OFFSETS,
    HostSampleResult,
    LogitEdits,
    Masks,
    Offsets,
    SampleParams,
    SampleRequest,
    SampleResult,
    Top,
    distribution,
    sample_one,
    signed,
    top_of,
)
from dflash.kernels.sample.top_k import top_k as find_top
from dflash.kernels.sample.top_p import nucleus as find_nucleus

__all__ = [
    "NO_MASKS",
    "NO_OFFSETS",
    "POOL",
    "LogitEdits",
    "Masks",
    "Offsets",
    "SampleParams",
    "SampleRequest",
    "SampleResult",
    "Top",
    "argmax",
    "candidates",
    "distribution",
    "gumbel",
    "likely",
    "log_sum_exp",
    "mask_row",
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
    """Start to sample tokens from some rows, each with its own parameters.

    Parameters
    ----------
    logits : float32 (R, V), or Logits
        Array in host memory, or `sample.cuda.Logits`, which stay on the device.
    requests : sequence of SampleRequest
        Requests; no row is in two of them.

    Returns
    -------
    SampleResult
        Sampled tokens. A token depends only on its row, its parameters and its position. The CPU samples a token when it is
        read; a GPU samples all of them at once.
    """
    return HostSampleResult(logits, requests) if isinstance(logits, np.ndarray) else logits.sample_rows(requests)


def argmax(logits: Floats, allowed: NDArray[np.bool_] | None = None, *, out: Ids) -> None:
    """Find the largest logit of each row; ties go to the lowest id.

    Parameters
    ----------
    logits : float32 (R, V)
    allowed : bool (R, V), optional
        Tokens that may be chosen; all tokens if None.
    out : int32 (R,)
        Receives the ids; -1 if every logit is NaN, minus infinity or not allowed.

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
    """Find the K largest logits, in descending order; among equals the lower id comes first.

    Parameters
    ----------
    row : float32 (V,)
    ids : int32 (K,)
        Receives the tokens; -1 where no logits above minus infinity are left. K is 1 to V.
    values : float32 (K,)
        Receives their logits.

    Raises
    ------
    KernelError
        If an array is strided or of another type or shape, or K is out of range.
    """
    check("row", row, row.shape, np.float32)
    check("ids", ids, values.shape, np.int32)
    check("values", values, values.shape, np.float32)
    if not 1 <= len(ids) <= len(row):
        raise KernelError(f"ids: must hold 1 to {len(row)} tokens, has room for {len(ids)}")
    find_top(row, ids, values)


def log_sum_exp(row: Floats, scale: float = 1.0) -> float:
    """Return ``log(sum(exp(scale * row)))``; a log-probability is a scaled logit minus this value.

    Parameters
    ----------
    row : float32 (V,)
    scale : float
        Inverse temperature; above 0.

    Returns
    -------
    float
        The error is about 1e-6 or less. The order of the sum depends only on V.
    """
    check("row", row, row.shape, np.float32)
    return cpu.log_sum_exp(row, float(scale))


def likely(row: Floats, scale: float, floor: float, *, ids: Ids, scaled: Floats) -> tuple[int, float]:
    """Find the tokens whose scaled logit ``(row - max(row)) * scale`` is at least `floor`.

    Parameters
    ----------
    row : float32 (V,)
    scale : float
        Inverse temperature; above 0.
    floor : float
        Lowest scaled logit to include; at most 0.
    ids : int32 (V,)
        Its first entries receive the tokens found, in ascending order.
    scaled : float32 (V,)
        Its first entries receive their scaled logits.

    Returns
    -------
    n : int
        Number of tokens found.
    total : float
        ``sum(exp((row - max(row)) * scale))`` over the whole row.
    """
    check("row", row, row.shape, np.float32)
    check("ids", ids, row.shape, np.int32)
    check("scaled", scaled, row.shape, np.float32)
    return cpu.likely(row, float(scale), float(floor), ids, scaled)


def nucleus(ids: Ids, scaled: Floats, share: float, total: float = 0.0) -> int:
    """Find the fewest tokens, most probable first, whose weights ``exp(scaled)`` add up to a share of the total (top-p).

    Parameters
    ----------
    ids : int32 (N,)
        Reordered in place: the tokens found come first; among equals the lower id comes first.
    scaled : float32 (N,)
        Finite scaled logits, reordered with `ids`.
    share : float
        Share to reach, 0 to 1. A share of 0 finds one token. If all tokens together stay below it, all are found.
    total : float, optional
        Sum of weights that the share refers to; the sum over the given tokens if 0.

    Returns
    -------
    int
        Number of tokens found; 0 only if N is 0.

    Notes
    -----
    Takes a few passes over the N tokens for any values, without sorting them.
    """
    check("ids", ids, scaled.shape, np.int32)
    check("scaled", scaled, ids.shape, np.float32)
    return find_nucleus(ids, scaled, float(share), float(total))


def gumbel(seed: int, position: int, ids: Ids, *, out: Floats) -> None:
    """Compute the Gumbel noise of some tokens at a position.

    Parameters
    ----------
    seed : int
        Key of the generator; only its lowest 64 bits count.
    position : int
        Position of the sampled token in its sequence, 0 to 2**32 - 1.
    ids : int32 (N,)
        Tokens. The noise of a token does not depend on the others.
    out : float32 (N,)
        Receives independent samples of the standard Gumbel distribution, from -3.14 to 22.88.

    Notes
    -----
    ``argmax(log p + noise)`` is a sample from p (Gumbel-max trick). See `sample.gumbel` for the generator, Philox4x32-10.
    """
    check("ids", ids, ids.shape, np.int32)
    check("out", out, ids.shape, np.float32)
    cpu.gumbel(signed(seed), position, ids, out)


def sample(row: Floats, scale: float, seed: int, position: int, floor: float = -np.inf) -> int:
    """Sample a token with the noise of `gumbel`.

    Parameters
    ----------
    row : float32 (V,)
    scale : float
        Inverse temperature; above 0.
    seed, position : int
        As for `gumbel`.
    floor : float
        Tokens whose ``(row - max(row)) * scale`` is below the floor are excluded.

    Returns
    -------
    int
        ``argmax((row - max(row)) * scale + noise)``, the lowest id among equals; -1 if no logit is above minus infinity.

    Notes
    -----
    Noise is computed only where it can matter: for logits within 26 temperatures of the largest.
    """
    check("row", row, row.shape, np.float32)
    return cpu.sample(row, float(scale), signed(seed), position, float(floor))


def sample_among(ids: Ids, scaled: Floats, seed: int, position: int, floor: float = -np.inf) -> int:
    """Sample one of a few tokens with the noise of `gumbel`.

    Parameters
    ----------
    ids : int32 (N,)
    scaled : float32 (N,)
        Their logits, divided by the temperature.
    seed, position : int
        As for `gumbel`.
    floor : float
        Tokens whose scaled logit is below the floor are excluded.

    Returns
    -------
    int
        ``ids[argmax(scaled + noise)]``, the lowest id among equals; -1 if there are no tokens. Equal to the result of
        `sample` if `scaled` is ``(row - max(row)) * scale`` and all other tokens are below its floor.
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
    """Find the candidate tokens of a draft model at some positions.

    Parameters
    ----------
    logits : float32 (R, V)
        Logits of the draft model.
    row_params : sequence of SampleParams
        Parameters with which the target model samples its token at each row's position.
    positions : sequence of int
        Position in its sequence of the token that each row predicts; as for `gumbel`.
    width : int
        Candidates of a row, 1 to `POOL`.
    ids : int32 (R, width)
        Receives the candidates, best first; -1 where there are no more.
    scores : float32 (R, width)
        Receives their scores; minus infinity where there are no more.
    targets : int32 (V,), optional
        Target token id of each draft token id (draft vocabulary). It is returned and selects the noise. Among equals the
        lower draft id comes first.

    Raises
    ------
    KernelError
        If an array is strided or of another type or shape, or the width is out of range.

    Notes
    -----
    Greedy rows (no scale) are scored by log-probability; among equals the lower id comes first. Sampled rows use only the
    `POOL` largest logits, reduced by the row's top-k, top-p and floor. With ``x = (logit - max) * scale + noise`` and the
    noise of the target's own sampling, the scores are ``x - log(sum(exp(x)))``. The first candidate is then accepted as
    often as two samples with the same noise agree.
    """
    n = len(logits)
    check("logits", logits, logits.shape, np.float32)
    if not 1 <= width <= POOL or len(row_params) != n or len(positions) != n:
        given = f"{len(row_params)} parameters, {len(positions)} positions"
        raise KernelError(f"candidates: wanted 1 to {POOL} for each of {n} rows, got {width}, {given}")
    check("ids", ids, (n, width), np.int32)
    check("scores", scores, (n, width), np.float32)
    names = _OWN_NAMES if targets is None else targets
    check("targets", names, names.shape if targets is None else logits.shape[1:], np.int32)
    reals = np.array([(params.scale or 0.0, params.top_p, params.floor) for params in row_params]).reshape(n, 3).T.copy()
    pairs = zip(row_params, positions, strict=True)
    whole = np.array([(params.top_k, signed(params.seed), at) for params, at in pairs], np.int64).reshape(n, 3).T.copy()
    find_candidates(logits, reals[0], whole[0], reals[1], reals[2], whole[1], whole[2], names, ids, scores)
