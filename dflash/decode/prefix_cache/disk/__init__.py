"""States of sequences in files: a tier of the prefix cache below memory, and sessions saved by name."""

from dflash.decode.prefix_cache.disk.saved_state import SavedState
from dflash.decode.prefix_cache.disk.tier import DEFAULT_CAPACITY, DiskStats, DiskTier

__all__ = ["DEFAULT_CAPACITY", "DiskStats", "DiskTier", "SavedState"]
