"""How GGUF packs weights: the types, what their bytes mean, and a matrix that stays packed.

The definition of a format stands twice, on purpose: `reference.py` in NumPy and `blocks.py` in 16 explicit lanes; tests hold
both against the `gguf` package bit for bit.
"""

from dflash.kernels.formats.blocks import FORMATS
from dflash.kernels.formats.matrix import Matrix
from dflash.kernels.formats.types import BLOCKS, BY_ID, BlockType

__all__ = ["BLOCKS", "BY_ID", "FORMATS", "BlockType", "Matrix"]
