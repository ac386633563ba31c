"""Kernels of a layer in one call, for one token."""

from dflash.kernels.joined.cpu import feed_forward, recurrent

__all__ = ["feed_forward", "recurrent"]
