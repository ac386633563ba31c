"""How the packed multiply of a GPU cuts its work: K into slices, rows into blocks."""

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from dflash.kernels.formats.cuda import tile_bytes
from dflash.kernels.formats.types import BLOCKS

_COLUMNS = 256
_ROOMY = 200
_ROW, _ROW_OF_16S = 608, 640
"""Bytes of a token's part, with its sums; where minima are of 16s."""
_MOST_WARPS = (
    {8: (24, 20, 20), 16: (20, 16, 8), 24: (12, 8, 8), 32: (12, 8, 0)},
    {8: (24, 20, 20), 16: (20, 16, 8), 24: (16, 12, 8), 32: (12, 8, 0)},
    {8: (28, 28, 20), 16: (20, 20, 12), 24: (20, 12, 8), 32: (20, 12, 8)},
    {8: (28, 28, 28), 16: (28, 24, 16), 24: (20, 20, 12), 32: (20, 16, 12)},
)
"""Warps of a block that have registers enough, by the tiles of a unit: of IQ4_XS or three types, where scales are of 32s, of
16s, else."""
_OF_32S = 1
_WHOLE = 12
"""Warps of a processor where K is whole: as many for each of its four parts."""
_ALONE = {8: 1.25, 16: 1.1, 24: 1.1, 32: 1.1}
"""What a tile costs in a unit of its own, of its cost in a unit of two, unless scales are of 16s or 32s."""
_OF_THREE, _FEW, _OF_FEW = 0.97, 12, 1.15
"""What it costs in a unit of three, and in blocks of fewer than so many warps."""
_OF_ANOTHER = {8: 0.3, 16: -0.3, 24: -0.3, 32: -0.3}, {8: 0.3, 16: 0.3, 24: -0.3, 32: -0.3}
"""What it costs that another block adds up, too, which spares tokens, in tiles of a processor; for gated sums."""
_OF_A_ROUND = 1
"""What it costs that further blocks follow."""
_FOURS, _IN_FOURS = ("Q4_K",), 10 / 11
"""Types whose tokens weigh so much beside them that four blocks may add up, and how many of the processors lie so that four
work together."""
_TOGETHER = 4
"""Slices of a block, at most."""
_BUSY, _VERY_BUSY = 16, 32
"""Tiles that a processor must have in hand to be busy; and for units of three."""
_SOME, _MANY, _VERY_MANY, _MANY_PAIRS = 4, 12, 40, 8


class Chip(NamedTuple):
    """What a GPU has.

    Parameters
    ----------
    processors : int
    shared : int
        KiB of shared memory that a block may have.
    clusters : bool
        Whether blocks see each other's shared memory.
    """

    processors: int
    shared: int
    clusters: bool

    @property
    def large(self) -> bool:
        """Whether blocks have room for many tokens, and can share K."""
        return self.clusters and self.shared > _ROOMY

    @property
    def most(self) -> int:
        """Tokens of a launch; more take several."""
        return 32 if self.large else 16

    @property
    def most_slices(self) -> int:
        """Slices that a block, or a cluster, can hold the tokens of."""
        return 8 if self.large else 4 if self.shared > 2 * _ROOMY // 3 else 2


def slices_of(tiles: int, width: int, types: tuple[str, ...], chip: Chip, *, gated: bool) -> int:
    """Into how many slices K is cut; the same for any number of tokens."""
    share = tiles * (2 if gated else 1) / chip.processors
    if gated and not (chip.large and _kind(types) > _OF_32S):
        slices = 1
    elif gated:
        slices = 2 if share >= _MANY_PAIRS else 4 if share >= _SOME else 8
    else:
        slices = 1 if share >= _MANY else 4 if share >= _SOME else 8
    slices = max(1, min(slices, -(-width // _COLUMNS) // 3, chip.most_slices))
    # more than a block takes are shared by two
    return slices if slices <= _TOGETHER else slices // 2 * 2


@cache
def shape(n: int, tiles: int, width: int, types: tuple[str, ...], chip: Chip, *, gated: bool) -> dict[str, int]:
    """Constants of the kernel for a bucket, `tiles` of 16 rows of `width` (for gated sums those of one weight)."""
    slices, sides, blocks = slices_of(tiles, width, types, chip, gated=gated), 2 if gated else 1, 1
    largest, row = max(tile_bytes(t) for t in types), n * (_ROW_OF_16S if "Q2_K" in types else _ROW)
    if not chip.large:
        units, mt, ks = min(10, int(20 * chip.shared / 227) // slices) // sides * sides, 1, slices
    elif slices == 1:
        units, mt, blocks = _whole(n, tiles * sides / chip.processors, _kind(types), sides)
        ks = 1
    else:
        clusters = (1, 2, 4) if slices > _TOGETHER and types == _FOURS else (1, 2)
        units, mt, ks = _balanced(n, tiles, sides, slices, _kind(types), chip, row, largest, clusters)
    shared = ((chip.shared + 1) // blocks - 4) * 1024
    return {
        "K_SLICES": ks,
        "CLUSTER": slices // ks,
        "ROW_UNITS": units,
        "MT": mt,
        "X_COLUMNS": _COLUMNS,
        "X_STAGES": _ahead(ks * row, ks * units * mt * largest, shared, ks) if chip.large else 2,
        "BLOCKS_PER_SM": blocks,
        "SMEM_BYTES": shared,
    }


def _ahead(part: int, stage: int, shared: int, ks: int) -> int:
    """How many parts of the tokens there is room for, of `part` bytes, beside stages of the weights."""
    choices = [(a, 1) for a in (4, 3)] if ks > 2 else [(4, 2), (3, 2), (4, 1), (3, 1)]
    return next((a for a, stages in choices if a * part + stages * stage <= shared), 2)


def cuts(width: int, slices: int) -> list[int]:
    """The columns where slices begin, and the width."""
    parts = -(-width // _COLUMNS)
    return [min(width, parts * i // slices * _COLUMNS) for i in range(slices + 1)]


def _kind(types: tuple[str, ...]) -> int:
    """Which of `_MOST_WARPS`."""
    if len(types) > 2 or "IQ4_XS" in types:
        return 0
    if any(BLOCKS[t].elements == 32 for t in types):
        return _OF_32S
    return 2 if any(t in ("Q6_K", "Q2_K", "Q3_K") for t in types) else 3


def _whole(n: int, share: float, kind: int, sides: int) -> tuple[int, int, int]:
    """Units, tiles of each and blocks of a processor where K is whole."""
    blocks = 2 if sides == 1 and share >= _VERY_MANY and n == 8 else 1
    most = min(_WHOLE // blocks, _MOST_WARPS[kind][n][1])
    rounds = math.ceil(share / (2 * most))
    return min(most, sides * math.ceil(share / (2 * rounds * sides))) if blocks == 1 else most, 2, blocks


def _balanced(
    n: int, tiles: int, sides: int, slices: int, kind: int, chip: Chip, row: int, largest: int, clusters: Sequence[int]
) -> tuple[int, int, int]:
    """Units, tiles of each and slices of a block that keep the processors equally busy.

    `row` and `largest` are the bytes of the tokens' columns and of a tile, `clusters` how many blocks may add up.
    """
    best, least = (sides, 1, slices), math.inf
    for cluster in clusters:
        if slices % cluster or slices > cluster * _TOGETHER:
            continue
        ks, at_once = slices // cluster, int(chip.processors * (_IN_FOURS if cluster == 4 else 1)) // cluster
        for mt in (1, 2, 3):
            room = ((chip.shared - 3) * 1024 - ks * 2 * row) // (ks * mt * largest)
            most = min(room, _MOST_WARPS[kind][n][mt - 1] // ks) // sides * sides
            if most < sides:
                continue
            rounds = -(-tiles * sides // (most * mt * at_once))
            units = sides * -(-tiles // (rounds * at_once * mt))
            if (mt == 3 and ks * units * mt < _VERY_BUSY) or (cluster == 4 and (mt == 1 or rounds > 1)):
                continue
            cost = rounds * units * mt / cluster * max(1, _BUSY / (ks * units * mt))
            cost *= (_ALONE[n] if kind == 3 else 1, 1, _OF_THREE)[mt - 1] * (_OF_FEW if ks * units < _FEW else 1)
            cost += _OF_ANOTHER[sides - 1][n] * (cluster - 1) + _OF_A_ROUND * (rounds - 1)
            if cost < least:
                best, least = (units, mt, ks), cost
    return best
