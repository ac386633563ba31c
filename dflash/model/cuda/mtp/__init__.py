"""The MTP head on a GPU."""

from dflash.model.cuda.mtp.head import DeviceMtpHead

__all__ = ["DeviceMtpHead"]
