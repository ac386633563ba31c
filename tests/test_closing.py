"""What was closed and let go of is gone at once: the memory of a GPU does not wait for the collector of cycles."""

import pytest
from closing import USES, left, no_collector


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_all_is_gone(lm, use):
    list(use(lm) or ())  # compiled now: numba remembers the stack above what it compiles
    with no_collector():
        assert left(use, device="cpu", threads=1) == []
