"""The tensor types of GGUF: names, ids and block sizes."""

from typing import NamedTuple


class BlockType(NamedTuple):
    """One GGUF tensor type.

    name: name in `gguf.GGMLQuantizationType`.
    elements, n_bytes: elements and bytes of a block; a row consists of whole blocks.
    """

    name: str
    id: int
    elements: int
    n_bytes: int


_TABLE = (
    BlockType("F32", 0, 1, 4),
    BlockType("F16", 1, 1, 2),
    BlockType("Q4_0", 2, 32, 18),
    BlockType("Q4_1", 3, 32, 20),
    BlockType("Q5_0", 6, 32, 22),
    BlockType("Q5_1", 7, 32, 24),
    BlockType("Q8_0", 8, 32, 34),
    BlockType("Q8_1", 9, 32, 40),
    BlockType("Q2_K", 10, 256, 84),
    BlockType("Q3_K", 11, 256, 110),
    BlockType("Q4_K", 12, 256, 144),
    BlockType("Q5_K", 13, 256, 176),
    BlockType("Q6_K", 14, 256, 210),
    BlockType("Q8_K", 15, 256, 292),
    BlockType("IQ2_XXS", 16, 256, 66),
    BlockType("IQ2_XS", 17, 256, 74),
    BlockType("IQ3_XXS", 18, 256, 98),
    BlockType("IQ1_S", 19, 256, 50),
    BlockType("IQ4_NL", 20, 32, 18),
    BlockType("IQ3_S", 21, 256, 110),
    BlockType("IQ2_S", 22, 256, 82),
    BlockType("IQ4_XS", 23, 256, 136),
    BlockType("I8", 24, 1, 1),
    BlockType("I16", 25, 1, 2),
    BlockType("I32", 26, 1, 4),
    BlockType("I64", 27, 1, 8),
    BlockType("F64", 28, 1, 8),
    BlockType("IQ1_M", 29, 256, 56),
    BlockType("BF16", 30, 1, 2),
    BlockType("TQ1_0", 34, 256, 54),
    BlockType("TQ2_0", 35, 256, 66),
    BlockType("MXFP4", 39, 32, 17),
    BlockType("NVFP4", 40, 64, 36),
    BlockType("Q1_0", 41, 128, 18),
)

BLOCKS: dict[str, BlockType] = {block.name: block for block in _TABLE}
"""All GGUF tensor types by name."""

BY_ID: dict[int, BlockType] = {block.id: block for block in _TABLE}
"""All GGUF tensor types by id."""
