"""GGUF weight formats: the types, the meaning of their bytes, and a matrix that stays packed.

Each format is implemented twice on purpose: in `reference.py` with NumPy and in `integers.py` and
`neighbours.py` with explicit lanes. Tests compare both with the `gguf` package bit for bit.
"""

from dflash.kernels.formats.format import FORMATS, Format, register
from dflash.kernels.formats.matrix import Matrix
from dflash.kernels.formats.types import BLOCKS, BY_ID, BlockType

__all__ = ["BLOCKS", "BY_ID", "FORMATS", "BlockType", "Format", "Matrix", "register"]
