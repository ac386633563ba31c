"""Pools of sequences in device memory."""

from dflash.kernels.attention.cuda import compact
from dflash.kernels.gpu import device
from dflash.model.state.pools import PoolBackend

DEVICE = PoolBackend(device.zeros, compact, device.clone)
