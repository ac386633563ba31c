"""How the packed multiply of a GPU cuts its work: K into slices, rows into blocks."""

import math
from functools import cache
from typing import NamedTuple

from dflash.kernels.formats.cuda import tile_bytes
from dflash.kernels.formats.types import BLOCKS

_COLUMNS = 256
_ROOMY = 200
_ROW = 640
"""Bytes of a token's part, with its sums."""
_MOST_WARPS = (
    {8: (24, 24), 16: (20, 12), 24: (16, 12), 32: (12, 8)},
    {8: (32, 24), 16: (24, 20), 24: (24, 12), 32: (20, 8)},
    {8: (32, 24), 16: (24, 20), 24: (24, 20), 32: (20, 16)},
)
"""Warps of a block that have registers enough, by the tiles of a unit: where scales are of 32s, of 16s, else."""
_ALONE = {8: 1.25, 16: 1.1, 24: 1.25, 32: 1.05}
"""What a tile costs in a unit of its own, of its cost in a unit of two, unless scales are of 16s or 32s."""
_OF_A_PAIR, _OF_A_ROUND = 0.3, 1
"""What it costs that two blocks add up, and that further blocks follow, in tiles of a processor."""
_BUSY = 16
"""Tiles that a processor must have in hand to be busy."""
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
    if gated and not (chip.large and _kind(types)):
        slices = 1
    elif gated:
        slices = 2 if share >= _MANY_PAIRS else 4 if share >= _SOME else 8
    else:
        slices = 1 if share >= _MANY else 4 if share >= _SOME else 8
    return max(1, min(slices, -(-width // _COLUMNS) // 3, chip.most_slices))


@cache
def shape(n: int, tiles: int, width: int, types: tuple[str, ...], chip: Chip, *, gated: bool) -> dict[str, int]:
    """Constants of the kernel for a bucket, `tiles` of 16 rows of `width` (for gated sums those of one weight)."""
    slices, sides, blocks = slices_of(tiles, width, types, chip, gated=gated), 2 if gated else 1, 1
    largest = max(tile_bytes(t) for t in types)
    if not chip.large:
        units, mt, ks = min(10, int(20 * chip.shared / 227) // slices - 1) // sides * sides, 1, slices
    elif slices == 1:
        units, mt, blocks = _whole(n, tiles * sides / chip.processors, _kind(types), gated=gated)
        ks = 1
    else:
        units, mt, ks = _balanced(n, tiles, sides, slices, _kind(types), chip, largest)
    shared, stages = ((chip.shared + 1) // blocks - 4) * 1024, mt * ks * units * mt * largest
    return {
        "KS": ks,
        "CLUSTER": slices // ks,
        "UNITS": units,
        "MT": mt,
        "COLUMNS": _COLUMNS,
        "AHEAD": next((parts for parts in (4, 3) if chip.large and ks * parts * n * _ROW + stages <= shared), 2),
        "BLOCKS": blocks,
        "WARPS_AT_MOST": ks * (units + 1),
        "SHARED": shared,
    }


def cuts(width: int, slices: int) -> list[int]:
    """The columns where slices begin, and the width."""
    parts = -(-width // _COLUMNS)
    return [min(width, parts * i // slices * _COLUMNS) for i in range(slices + 1)]


def _kind(types: tuple[str, ...]) -> int:
    """Which of `_MOST_WARPS`."""
    if any(BLOCKS[t].elements == 32 or t == "IQ4_XS" for t in types):
        return 0
    return 1 if "Q6_K" in types else 2


def _whole(n: int, share: float, kind: int, *, gated: bool) -> tuple[int, int, int]:
    """Units, tiles of each and blocks of a processor where K is whole."""
    units, mt, blocks = 10, 2, 1
    if not gated and share >= _VERY_MANY and n <= 24:
        units, mt, blocks = (8, 2, 2) if n <= 16 else (4, 2, 3)
    if n > 8:
        units = min(units, _MOST_WARPS[kind][n][mt - 1] // blocks - 1)
    return units // 2 * 2 if gated else units, mt, blocks


def _balanced(n: int, tiles: int, sides: int, slices: int, kind: int, chip: Chip, largest: int) -> tuple[int, int, int]:
    """Units, tiles of each and slices of a block that keep the processors equally busy; `largest` bytes of a tile."""
    best, least = (sides, 1, slices), math.inf
    for cluster in (1, 2):
        if slices % cluster:
            continue
        ks, at_once = slices // cluster, chip.processors // cluster
        for mt in (1, 2):
            room = ((chip.shared - 3) * 1024 - ks * 2 * n * _ROW) // (ks * mt * largest)
            most = min(room, _MOST_WARPS[kind][n][mt - 1] // ks - 1) // sides * sides
            if most < sides:
                continue
            rounds = -(-tiles * sides // (most * mt * at_once))
            units = sides * -(-tiles // (rounds * at_once * mt))
            cost = rounds * units * mt / cluster * max(1, _BUSY / (ks * units * mt))
            cost *= _ALONE[n] if mt == 1 and kind == 2 else 1
            cost += _OF_A_PAIR * (cluster - 1) + _OF_A_ROUND * (rounds - 1)
            if cost < least:
                best, least = (units, mt, ks), cost
    return best
