"""Physical memory of the slots of sequences."""

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from dflash.kernels.arrays import release, zeros
from dflash.model.state.pools import HOST, Pools

MIB = 1 << 20


@pytest.fixture
def counted(lm):
    """Pools of four slots, and the numbers of times that each of their arrays was released."""
    releases = []
    return Pools(lm.model.config, pages=1, slots=4, backend=HOST._replace(release=releases.append)), releases


def test_one_sequence_at_a_time_keeps_its_memory(counted):
    pools, releases = counted
    slots = []
    for _ in range(3):
        slots.append(pools.take_slot())
        pools.return_slot(slots[-1])
    assert len(set(slots)) == 1
    assert not releases


def test_several_sequences_give_their_memory_back_when_the_last_ends(counted):
    pools, releases = counted
    taken = [pools.take_slot() for _ in range(3)]
    for slot in taken[:-1]:
        pools.return_slot(slot)
        assert not releases
    pools.return_slot(taken[-1])
    parts = [pools.conv[0].tail, pools.delta[-1].state, pools.delta[-1].k, pools.delta[0].u, pools.delta[0].decay]
    assert all(any(np.shares_memory(part, array) for array in releases) for part in parts)
    pools.return_slot(pools.take_slot())
    assert len(releases) == len({id(array) for array in releases})


@pytest.mark.skipif(sys.platform != "linux", reason="memory is released on Linux only")
def test_released_memory_is_given_back():
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    array = zeros(16 * MIB)
    array[:] = 1
    before = resident()
    release(array)
    assert before - resident() > 32 * MIB
    array[:] = 2
    assert array.sum() == 32 * MIB
