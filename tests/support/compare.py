"""Comparison of arrays in tests."""

import numpy as np
from numpy.typing import ArrayLike


def assert_close(name: str, got: ArrayLike, want: ArrayLike, ratio: float) -> None:
    """Fail unless the RMS error is at most `ratio` times the RMS of the truth; NaN is refused.

    Parameters
    ----------
    name : str
        What is compared, for the message.
    got, want : array_like
        Of one shape; `want` is the truth.
    ratio : float
        Largest allowed RMS error over the RMS of `want`.
    """
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, f"{name}: shape {got.shape}, wanted {want.shape}"
    bad = ~np.isfinite(got)
    assert not bad.any(), f"{name}: {bad.sum()} values are not finite, the first at {np.argwhere(bad)[0].tolist()}"
    error = np.abs(got - want)
    rms, truth = np.sqrt(np.mean(error**2)), np.sqrt(np.mean(want**2))
    worst = np.unravel_index(np.argmax(error), error.shape) if error.size else ()
    assert rms <= ratio * truth, (
        f"{name}: RMS error {rms:.3g} is {rms / max(truth, 1e-300):.3g} of {truth:.3g}, allowed {ratio:.3g}; "
        f"worst at {[int(i) for i in worst]}: got {got[worst]:.6g}, wanted {want[worst]:.6g}"
    )


def assert_same_bits(name: str, got: ArrayLike, want: ArrayLike) -> None:
    """Fail unless both arrays hold the same bytes."""
    got, want = np.ascontiguousarray(got), np.ascontiguousarray(want)
    assert got.dtype == want.dtype, f"{name}: {got.dtype} against {want.dtype}"
    assert got.shape == want.shape, f"{name}: shape {got.shape}, wanted {want.shape}"
    if got.tobytes() == want.tobytes():
        return
    differs = np.argwhere(got.view(np.uint8).reshape(*got.shape, -1) != want.view(np.uint8).reshape(*want.shape, -1))
    at = tuple(int(i) for i in differs[0][:-1])
    raise AssertionError(f"{name}: bits differ, first at {list(at)}: {got[at]!r} against {want[at]!r}")
