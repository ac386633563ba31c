"""Random arrays from NumPy's generators."""

import numpy as np

from cupy import arrays


class _Generator:
    def __init__(self, seed):
        self._generator = np.random.default_rng(seed)

    def __getattr__(self, name):
        draw = getattr(self._generator, name)
        return lambda *args, **options: arrays.array(draw(*args, **options))


def default_rng(seed=None):
    return _Generator(seed)


_SHARED = np.random.default_rng(0)


def standard_normal(size=None, dtype=np.float64):
    return arrays.array(_SHARED.standard_normal(size), dtype)


def randint(low, high=None, size=None, dtype=np.int64):
    return arrays.array(_SHARED.integers(low, high, size), dtype)
