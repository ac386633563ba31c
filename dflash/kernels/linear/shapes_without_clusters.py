"""Launch shapes of the packed multiply on GPUs whose blocks have less shared memory than Hopper's and do not share K slices.

A warp takes one K slice of a unit of one to three tiles. The tokens of each slice lie in shared memory beside the weights:
few slices leave space for many tokens and for weights in flight. Costs are fitted to 337 launches of the shapes of a 27B
model under the rules of 8.6 on an H200, see ``benchmarks/results/gpu-targets.md``.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

TOKENS = 32, 24, 16, 8
"""Numbers of tokens of a launch."""
WARPS = (
    {8: (20, 16, 12), 16: (16, 12, 8), 24: (12, 8, 4), 32: (12, 4, 0)},
    {8: (20, 16, 12), 16: (16, 8, 8), 24: (12, 8, 4), 32: (8, 4, 0)},
    {8: (20, 20, 20), 16: (20, 16, 8), 24: (16, 12, 8), 32: (16, 8, 4)},
    {8: (28, 24, 24), 16: (24, 20, 12), 24: (19, 12, 8), 32: (12, 8, 8)},
)
"""Largest number of warps of a block that fit the registers of 8.0, as `_MOST_WARPS` of `tile_config`, by kind of types."""
_SLICES, _SLICES_IF_ROOMY = ((6, 1), (2.5, 2), (1.2, 3), (0, 4)), ((6, 1), (3, 2), (1.2, 3), (0, 4))
"""Tiles of each multiprocessor, 256 columns wide, and the number of K slices from there on; the second where a block has
shared memory for 32 tokens in three slices."""
_ROOMY = 160  # KiB
_TIME = {8: 1.0, 16: 1.25, 24: 1.6, 32: 1.6}
"""Relative time of a tile, by tokens."""
_WAITS = {8: 0.5, 16: 0.8, 24: 1.0, 32: 1.0}
"""Share of the time that a multiprocessor without a tile would lose; the rest goes to the others, which memory limits."""
_FULL_WARPS, _SCHEDULERS = 8, 4
"""Warps that hide the latency of products, and a number that warps should be a multiple of."""
_FEW_STAGES_COST = {1: 1.12, 2: 1.0}, 0.98
"""Relative cost by stages of the weights; and with more of them."""
_AHEAD_COST = {2: 1.1, 3: 1.0, 4: 0.985}
"""Relative cost by stages of tokens."""
_SINGLE_TILE_COST = {8: 1.0, 16: 1.0, 24: 1.0, 32: 1.25}
"""Relative cost of units of one tile, by tokens: each reads all fragments of the tokens for itself."""


class Launch(NamedTuple):
    """Constants of a launch.

    units: units of a block.
    tiles: tiles of a unit.
    ahead: stages of tokens.
    cost: estimated time, in tiles of a multiprocessor for eight tokens.
    """

    units: int
    tiles: int
    ahead: int
    cost: float


def n_slices(share: float, columns: int, shared: int) -> int:
    """Return the number of K slices for `share` tiles of each multiprocessor, K of `columns` times 256 and `shared` KiB."""
    rule = _SLICES_IF_ROOMY if shared >= _ROOMY else _SLICES
    return min(columns, next(slices for least, slices in rule if share >= least))


def launch(
    n: int, tiles: int, sides: int, slices: int, processors: int, *, room: int, row: int, largest: int, warps: Sequence[int]
) -> Launch | None:
    """Return the launch with the lowest estimated cost; None if none fits.

    tiles: tiles of 16 rows of one weight.
    sides: 2 for gate and up, else 1.
    room: bytes of shared memory of a block.
    row: bytes of a token in a stage of one slice.
    largest: bytes of a tile.
    warps: largest number of warps of a block for units of 1, 2 and 3 tiles.
    """
    best = None
    for of_unit, most in enumerate(warps, 1):
        for units in range(sides, most // slices + 1, sides):
            if units * of_unit * n // 8 * slices * 512 > room:  # the sums of the slices
                break
            for ahead, ahead_cost in _AHEAD_COST.items():
                stages = (room - slices * ahead * n * row) // (slices * units * of_unit * largest)
                if stages > 0:
                    cost = _cost(n, tiles, sides, slices, processors, units, of_unit, stages) * ahead_cost
                    if best is None or cost < best.cost:
                        best = Launch(units, of_unit, ahead, cost)
    return best


def _cost(n: int, tiles: int, sides: int, slices: int, processors: int, units: int, of_unit: int, stages: int) -> float:
    """Return the estimated time of a launch with any number of stages of tokens."""
    warps = slices * units
    blocks = math.ceil(tiles / (units // sides * of_unit))
    slowest = math.ceil(blocks / processors) * of_unit * math.ceil(warps / _SCHEDULERS) * _SCHEDULERS / slices
    cost = _WAITS[n] * slowest + (1 - _WAITS[n]) * tiles * sides / processors
    cost *= _TIME[n] * (_SINGLE_TILE_COST[n] if of_unit == 1 else 1) * max(1, _FULL_WARPS / warps) ** 0.6
    few, many = _FEW_STAGES_COST
    return cost * few.get(stages, many)
