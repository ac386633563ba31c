"""Prefix cache: snapshots of earlier sequences, found by their token ids, from which new sequences begin."""

from dflash.decode.prefix_cache.cache import PrefixCache

__all__ = ["PrefixCache"]
