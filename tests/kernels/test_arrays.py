"""Aligned and lazily backed host arrays."""

import numpy as np
import pytest

from dflash.kernels.arrays import empty


@pytest.mark.parametrize("shape", [(1,), (3, 5), (7, 2, 33), (1000, 512)])
def test_empty_begins_on_a_cache_line(shape):
    for _ in range(5):
        array = empty(*shape)
        assert (array.shape, array.dtype) == (shape, np.float32)
        assert array.ctypes.data % 64 == 0
        assert array.flags.c_contiguous
        array[:] = 1
