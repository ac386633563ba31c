"""Soft cap against its definition."""

import numpy as np
import pytest
from compare import assert_close

from dflash.kernels.soft_cap import reference, soft_cap

CASES = list(reference.cases())
IDS = [name for name, *_ in CASES]


@pytest.mark.parametrize(("name", "rows", "width", "cap"), CASES, ids=IDS)
def test_the_soft_cap_equals_the_definition(name, rows, width, cap):
    x = 3 * cap * np.random.default_rng(0).standard_normal((rows, width), dtype=np.float32)
    want = reference.soft_cap(x, cap)
    soft_cap(x, cap)
    assert_close(name, x, want, 3e-7)
    assert np.abs(x).max() <= np.float32(cap)
