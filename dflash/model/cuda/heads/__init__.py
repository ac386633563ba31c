"""Heads that draft from their own hidden states on a GPU: MTP and EAGLE-3."""

from dflash.model.cuda.heads.eagle import DeviceEagleHead
from dflash.model.cuda.heads.mtp import DeviceMtpHead

__all__ = ["DeviceEagleHead", "DeviceMtpHead"]
