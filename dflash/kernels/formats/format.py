"""Weight formats that kernels read directly: each is one object that says all that they have to know."""

import hashlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dflash.errors import KernelError
from dflash.kernels.cpu.sources import closure_digest
from dflash.kernels.formats import blocks, integers, neighbours, reference
from dflash.kernels.formats.integers import IntegerBlock
from dflash.kernels.formats.lanes import Lanes, QuantBlock
from dflash.kernels.formats.neighbours import Neighbours, SmallBlocks
from dflash.kernels.formats.types import BLOCKS, BY_ID, BlockType


class Format(NamedTuple):
    """A weight format that kernels read directly.

    Parameters
    ----------
    block : BlockType
        Name and number of the type in a GGUF file, weights and bytes of a block.
    definition : callable
        uint8 (N, bytes of a block) to float32 (N, weights of a block), in NumPy: the exact weights.
    decode : callable
        The same on the CPU: yields the weights of a block in order, 16 at a time.
    integers : callable, optional
        The same as whole numbers with scales and minima; then tokens are rounded to int16. From a `QuantBlock` for blocks of
        256 weights, from `Neighbours` for those of 32.
    minima : int
        Minima of a row of a CUDA tile, 0, 8 or 16: `MINIMA` of the struct in quants.cuh.
    run : int
        Consecutive weights of a lane, 8 or 4: `RUN` of that struct.
    registers : int
        Registers that CUDA kernels need to decode it: 0 is most, 3 is fewest; see `linear/tile_config.py`.
    is_light : bool
        True if the first projections of experts have registers left for three blocks of a multiprocessor.
    """

    block: BlockType
    definition: Callable[[NDArray[np.uint8]], NDArray[np.float32]]
    decode: Callable[[QuantBlock], Iterator[Lanes]]
    integers: Callable[[QuantBlock], IntegerBlock] | Callable[[Neighbours], SmallBlocks] | None = None
    minima: int = 0
    run: int = 8
    registers: int = 3
    is_light: bool = False

    def unpack(self, data: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the exact weights (..., K) of rows of whole blocks, uint8 (..., row_bytes)."""
        found = np.ascontiguousarray(data).reshape(-1, self.block.n_bytes)
        return self.definition(found).reshape(*data.shape[:-1], data.shape[-1] // self.block.n_bytes * self.block.elements)


FORMATS: dict[str, Format] = {}
"""Formats by the name of their type."""


def register(made: Format) -> Format:
    """Let kernels read a format; call it before a file with that type is opened.

    Raises
    ------
    KernelError
        If kernels read a type of that name already, or the name or the number belongs to another type.
    """
    block = made.block
    if block.name in FORMATS or BLOCKS.get(block.name, block) != block or BY_ID.get(block.id, block) != block:
        raise KernelError(f"format {block.name}, number {block.id}: one of them is taken; restart Python to change a format")
    FORMATS[block.name], BLOCKS[block.name], BY_ID[block.id] = made, block, block
    return made


@cache
def number_of(name: str) -> int:
    """Return the number of a format in compiled code: another one if a source of it changes, so that no cache mixes them."""
    code = FORMATS[name].decode.__code__
    digest = closure_digest(FORMATS[name].decode.__module__, Path(code.co_filename)) or repr(code)
    number = int(hashlib.sha256(f"{name} {digest}".encode()).hexdigest()[:8], 16)
    NUMBERED[number] = FORMATS[name]
    return number


NUMBERED: dict[int, Format] = {}
"""Formats by the number that `number_of` has returned."""

_small, _large = neighbours.exact, integers.exact
for _made in (
    Format(BLOCKS["F32"], reference.f32, blocks.f32),
    Format(BLOCKS["F16"], reference.f16, blocks.f16),
    Format(BLOCKS["BF16"], reference.bf16, blocks.bf16),
    Format(BLOCKS["Q4_0"], reference.q4_0, _small(neighbours.q4_0), neighbours.q4_0, registers=1),
    Format(BLOCKS["Q4_1"], reference.q4_1, _small(neighbours.q4_1), neighbours.q4_1, minima=8, registers=1),
    Format(BLOCKS["Q5_0"], reference.q5_0, _small(neighbours.q5_0), neighbours.q5_0, registers=1),
    Format(BLOCKS["Q5_1"], reference.q5_1, _small(neighbours.q5_1), neighbours.q5_1, minima=8, registers=1),
    Format(BLOCKS["Q8_0"], reference.q8_0, _small(neighbours.q8_0), neighbours.q8_0, registers=1),
    Format(BLOCKS["Q2_K"], reference.q2_k, _large(integers.q2_k), integers.q2_k, minima=16, registers=2, is_light=True),
    Format(BLOCKS["Q3_K"], reference.q3_k, _large(integers.q3_k), integers.q3_k, registers=2, is_light=True),
    Format(BLOCKS["Q4_K"], reference.q4_k, _large(integers.q4_k), integers.q4_k, minima=8, is_light=True),
    Format(BLOCKS["Q5_K"], reference.q5_k, _large(integers.q5_k), integers.q5_k, minima=8),
    Format(BLOCKS["Q6_K"], reference.q6_k, _large(integers.q6_k), integers.q6_k, run=4, registers=2, is_light=True),
    Format(BLOCKS["IQ4_NL"], reference.iq4_nl, _small(neighbours.iq4_nl), neighbours.iq4_nl, registers=1),
    Format(BLOCKS["IQ4_XS"], reference.iq4_xs, _large(integers.iq4_xs), integers.iq4_xs, registers=0),
    Format(BLOCKS["MXFP4"], reference.mxfp4, _small(neighbours.mxfp4), neighbours.mxfp4, registers=1, is_light=True),
):
    register(_made)
