"""The exchange of a tensor split compiles for every supported GPU, without one here."""

import nvrtc
import pytest
from nvrtc import ARCHITECTURES, compiled

pytestmark = nvrtc.needed


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_architecture(arch):
    for unit in (2, 4, 8, 16):
        assert compiled("exchange/exchange.cu", arch, RANK=1, PEERS=2, UNIT=unit) == 0
