"""Closed objects are freed at once: GPU memory must not wait for the garbage collector."""

import pytest
from closing import USES, left, no_collector


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_all_is_gone(lm, use):
    list(use(lm) or ())  # compiled now: numba remembers the stack above what it compiles
    with no_collector():
        assert left(use, device="cpu", threads=1) == []
