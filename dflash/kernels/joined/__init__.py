"""Kernels of a layer in one call, for one token."""

from dflash.kernels.joined.cpu import attention, feed_forward, recurrent

__all__ = ["attention", "feed_forward", "recurrent"]
