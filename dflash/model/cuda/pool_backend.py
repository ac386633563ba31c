"""Pools of sequences in device memory."""

from dflash.errors import OutOfMemory
from dflash.kernels.attention.cuda import compact
from dflash.kernels.gpu import device
from dflash.model.state.pools import PoolBackend


def _keep(_array: object) -> None:
    """Release nothing: device memory is allocated once."""


_SPARE = 64
"""Share of the device's memory that copies of states leave free, 1 / 64: 2.2 GiB on an H200, 384 MiB of 24 GiB."""


def _leave_room(n_bytes: int) -> None:
    """Raise `OutOfMemory` if a copy would take memory that passes need."""
    left, spare = device.free_memory() - n_bytes, device.total_memory() // _SPARE
    if left < spare:
        raise OutOfMemory(f"a copy of a state would leave {left >> 20} MiB free, less than {spare >> 20}")


DEVICE = PoolBackend(device.zeros, compact, device.clone, _keep, _leave_room)
