"""Definitions in float64 NumPy; Philox in Python integers."""

import numpy as np

_MASK = 0xFFFFFFFF


def argmax(logits, allowed=None, *, out):
    """Find the id of each row's largest logit, the lowest among equals; -1 if no logit is above minus infinity."""
    for i, row in enumerate(logits):
        row = np.where(np.isnan(row), -np.inf, row)
        if allowed is not None:
            row = np.where(allowed[i], row, -np.inf)
        out[i] = np.argmax(row) if row.max() > -np.inf else -1


def top_k(row, *, ids, values):
    """Find ids and values of the largest logits, descending, lower ids first among equals; id -1 for minus infinity."""
    ids[:] = np.lexsort((np.arange(len(row)), -row))[: len(ids)]
    values[:] = row[ids]
    ids[values == -np.inf] = -1


def log_sum_exp(row, scale=1.0):
    """Return ``log(sum(exp(scale * row)))``."""
    scaled = row.astype(np.float64) * np.float64(np.float32(scale))
    return float(scaled.max() + np.log(np.exp(scaled - scaled.max()).sum()))


def likely(row, scale, floor, *, ids, scaled):
    """Find ids with ``(row - max(row)) * scale >= floor``, ascending; return their number and the sum of exponentials."""
    values = (row - row.max()) * np.float32(scale)
    found = np.flatnonzero(values >= np.float32(floor))
    ids[: len(found)], scaled[: len(found)] = found, values[found]
    return len(found), float(np.exp(values.astype(np.float64)).sum())


def nucleus(ids, scaled, share, total=0.0):
    """Sort by probability, lower ids first among equals; return how many tokens reach a share of `total`."""
    order = np.lexsort((ids, -scaled))
    ids[:], scaled[:] = ids[order], scaled[order]
    mass = np.cumsum(np.exp(scaled.astype(np.float64)))
    return min(len(ids), int(np.searchsorted(mass, share * (total or mass[-1]))) + 1)


def philox(counter, key):
    """Return four random words for four counter words and two key words (Philox4x32-10)."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _MASK, (p0 >> 32) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return c0, c1, c2, c3


def gumbel(seed, position, ids, *, out):
    """Compute ``-log(-log(1 - v))``, where v is the uniform number of the token."""
    for i, token in enumerate(ids.tolist()):
        words = philox((token // 64 * 16 + token % 16, position, 0, 0), (seed & _MASK, seed >> 32 & _MASK))
        out[i] = -np.log(-np.log1p(-(words[token // 16 % 4] + 0.5) / 2**32))


def sample(row, scale, seed, position, floor=-np.inf):
    """Return ``argmax(scaled + noise)`` where ``scaled = (row - max(row)) * scale`` is at least `floor`, in float32."""
    noise = np.empty(len(row), np.float32)
    gumbel(seed, position, np.arange(len(row)), out=noise)
    scaled = (row - row.max()) * np.float32(scale)
    return int(np.argmax(np.where(scaled >= np.float32(floor), scaled + noise, -np.inf)))


def sample_among(ids, scaled, seed, position, floor=-np.inf):
    """Return the id with the largest ``scaled + noise``, the lowest among equals."""
    ids, scaled = ids[scaled >= floor], scaled[scaled >= floor]
    noise = np.empty(len(ids), np.float32)
    gumbel(seed, position, ids, out=noise)
    keys = scaled + noise
    return int(ids[keys == keys.max()].min())


def candidates(logits, row_params, positions, width, *, ids, scores):
    """Find candidates: by log-probability, or by scaled logits with noise among the 64 largest that pass all filters."""
    ids[:], scores[:] = -1, -np.inf
    for r, (row, params) in enumerate(zip(logits, row_params, strict=True)):
        n = min(len(row), width if params.scale is None else 64)
        found, x = np.empty(n, np.int32), np.empty(n, np.float32)
        top_k(row, ids=found, values=x)
        found, x = found[found >= 0], x[found >= 0]
        if params.scale is None:
            x = x - log_sum_exp(row) if len(x) else x
        else:
            found, x = found[: params.top_k or n], (x[: params.top_k or n] - row.max()) * np.float32(params.scale)
            n = nucleus(found, x, params.top_p) if params.top_p < 1 and len(x) else len(x)
            kept = x[:n] >= np.float32(params.floor)
            found, x = found[:n][kept], x[:n][kept]
            noise = np.empty(len(x), np.float32)
            gumbel(params.seed, positions[r], found, out=noise)
            x = x + noise
            order = np.argsort(-x, kind="stable")
            total = np.log(np.exp(x.astype(np.float64)).sum())
            found, x = found[order][:width], x[order][:width] - total
        ids[r, : len(x)], scores[r, : len(x)] = found, x


def cases():
    """Yield names and vocabulary sizes."""
    for n in (1, 2, 15, 16, 63, 64, 65, 127, 1000, 1024, 1025, 4099):
        yield f"{n} tokens", n
