"""Pools of sequences in device memory."""

from dflash.kernels.attention.cuda import compact
from dflash.kernels.gpu import device
from dflash.model.state.pools import PoolBackend


def _keep(_array: object) -> None:
    """Release nothing: device memory is allocated once."""


DEVICE = PoolBackend(device.zeros, compact, device.clone, _keep)
