"""What was closed and let go of gives its memory back at once, as this process counts: others may use the card, too."""

import pytest
from closing import USES, left, no_collector, nothing

cupy = pytest.importorskip("cupy")


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_all_is_gone(use):
    pool = cupy.get_default_memory_pool()
    left(nothing, device="cuda")  # what is made once and stays
    with no_collector():
        before = pool.used_bytes()
        assert left(use, device="cuda") == []
        assert pool.used_bytes() == before
