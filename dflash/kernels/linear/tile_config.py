"""Launch shapes of the packed multiply on a GPU: K slices, and rows of a block, from a cost model fitted to measurements."""

import math
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from dflash.kernels.formats.cuda import tile_bytes, tile_width
from dflash.kernels.formats.format import FORMATS
from dflash.kernels.linear.shapes_without_clusters import TOKENS, WARPS, Launch, launch, n_slices

_COLUMNS = 256  # columns of K that are a unit of slicing
_ROOMY = 200  # KiB of shared memory of a block above which a GPU counts as large
_ROW, _ROW_OF_16S = 608, 640
"""Bytes of a token's columns of one stage and their sums; the second for formats with minima of 16 weights."""
_MOST_WARPS = (
    {8: (24, 20, 20), 16: (20, 16, 8), 24: (12, 8, 8), 32: (12, 8, 0)},
    {8: (24, 20, 20), 16: (20, 16, 8), 24: (16, 12, 8), 32: (12, 8, 0)},
    {8: (28, 28, 20), 16: (20, 20, 12), 24: (20, 12, 8), 32: (20, 12, 8)},
    {8: (28, 28, 28), 16: (28, 24, 16), 24: (20, 20, 12), 32: (20, 16, 12)},
)
"""Largest number of warps of a block that fit the registers, by bucket, for units of 1, 2 and 3 tiles. One row for each kind
of types (`_kind`): IQ4_XS or three types; scales of 32 weights; scales of 16 weights; others."""
_SCALES_OF_32 = 1  # row of `_MOST_WARPS`
_UNSPLIT_WARPS = 12
"""Warps of a multiprocessor if K is not split: a multiple of its four partitions."""
_SINGLE_TILE_COST = {8: 1.25, 16: 1.1, 24: 1.1, 32: 1.1}
"""Cost of a tile in a unit of one, relative to a unit of two, by bucket; only for kind 3 of types."""
_TRIPLE_TILE_COST, _SMALL_BLOCK_WARPS, _SMALL_BLOCK_COST = 0.97, 12, 1.3
"""Relative cost of a tile in a unit of three; number of warps below which a block is small, and its relative cost."""
_CLUSTER_COST = (
    {8: (0.3, 0.9), 16: (-0.3, -0.9), 24: (-0.3, -0.9), 32: (-0.3, -0.9)},
    {8: (1, 3), 16: (1.5, 4.5), 24: (-0.3, -0.9), 32: (-0.3, -0.9)},
)
"""Cost of launches with clusters of two and of four blocks, by bucket of tokens: first not gated, then gated. Unit: the time
in which a multiprocessor multiplies a tile. Below 0, clusters save time."""
_FEW_TILES, _CLUSTER_COST_OF_FEW = 6, (0.3, 0)
"""Most tiles of a multiprocessor for which launches for 16 tokens that are not gated have other costs of clusters; these."""
_WAVE_COST = 1
"""Cost of a further wave of blocks, in tiles of a multiprocessor."""
_CLUSTER_4_TYPES, _CLUSTER_4_SHARE = ("Q4_K",), 10 / 11
"""Types of a launch for which clusters of four blocks are tried: their weights are small, so that sharing the activations
saves most. And the share of all multiprocessors that can form clusters of four."""
_RESERVED = 3  # KiB of shared memory of a block for what is not dynamic
_FEW_PARTS = 5
"""Stages that hold all activations of a slice, up to which one stage of weights is enough."""
_MAX_SLICES = 4
"""Largest number of K slices of a block if its weights do not fit shared memory at once."""
_SMALL_TILES = 48
"""Tiles of each multiprocessor, 256 columns wide, up to which a launch may keep all its weights in shared memory at once."""
_TILES_FOR_WHOLE_SLICES, _MOST_WHOLE_SLICES = 8, (16, 8)
"""Tiles of each multiprocessor, 256 columns wide, up to which a K slice has 256 columns; and the most such slices, not gated
and gated."""
_SMALL_WARPS = 20
"""Largest number of warps of a block that keeps its weights in shared memory."""
_SMALL_CHOICES = (1, 1), (1, 2), (2, 1), (2, 2), (1, 3), (2, 3)
"""Blocks of a cluster and tiles of a unit of such a launch; the first that fit are taken, as fast as any in measurements."""
_TILES_IN_FLIGHT, _TILES_FOR_TRIPLES = 13, 32
"""Tiles in flight that keep a multiprocessor busy; and the tiles required for units of three."""
_TILES_FOR_4_SLICES, _TILES_FOR_1_SLICE, _TILES_FOR_2_SLICES_GATED = 4, 12, 8
"""Tiles of each multiprocessor from which K is split into that number of slices at most; with fewer tiles, into 8 or 4."""
_PART_ROWS = 16
"""Largest bucket in which part of a matrix has units of one tile; not measured beyond."""
_TILES_FOR_2_BLOCKS = 40
"""Tiles of each multiprocessor from which two blocks share it if K is not split."""

_ONE_TOKEN = {"ROW_UNITS": 8, "MT": 1, "X_STAGES": 4, "X_ROWS": 1, "WEIGHTS_FIRST": 4}
"""Constants of a launch of one token where two blocks share a multiprocessor."""


class Chip(NamedTuple):
    """Resources of a GPU.

    processors: number of multiprocessors.
    shared: shared memory that a block may use, in KiB.
    clusters: thread block clusters with distributed shared memory are supported.
    """

    processors: int
    shared: int
    clusters: bool

    @property
    def large(self) -> bool:
        """Blocks have shared memory for up to 32 tokens and can split K in clusters."""
        return self.clusters and self.shared > _ROOMY


def slices_of(tiles: int, width: int, types: tuple[str, ...], chip: Chip, *, gated: bool) -> int:
    """Return the number of K slices; the same for any number of tokens, so that a token keeps its bits."""
    share = tiles * (2 if gated else 1) / chip.processors
    if not chip.large:
        return n_slices(share, -(-width // _COLUMNS), chip.shared)
    if gated and _kind(types) <= _SCALES_OF_32 and share >= _TILES_FOR_4_SLICES:
        slices = 1
    elif gated:
        slices = 2 if share >= _TILES_FOR_2_SLICES_GATED else 4 if share >= _TILES_FOR_4_SLICES else 8
    else:
        slices = 1 if share >= _TILES_FOR_1_SLICE else 4 if share >= _TILES_FOR_4_SLICES else 8
    columns = -(-width // _COLUMNS)
    # even, since many tokens take a cluster of two; tiles of types that are not quantised may not fit then
    whole = columns % 2 == 0 and columns <= _MOST_WHOLE_SLICES[gated] and all(tile_width(t) == _COLUMNS for t in types)
    if whole and share * columns <= _TILES_FOR_WHOLE_SLICES:
        return columns
    slices = max(1, min(slices, columns))
    # slices that exceed a block are shared by a cluster of two
    return slices if slices <= _MAX_SLICES else slices // 2 * 2


@cache
def shape(
    n: int, tiles: int, width: int, types: tuple[str, ...], chip: Chip, *, gated: bool, whole: int | None = None
) -> dict[str, int]:
    """Return the kernel's constants for bucket `n` and `tiles` of 16 rows of `width`; if gated, the tiles of one weight.

    For a part of the rows of a matrix, K is sliced as for the `whole` tiles, so that its outputs have the same bits.
    """
    whole = whole or tiles
    slices, sides, blocks = slices_of(whole, width, types, chip, gated=gated), 2 if gated else 1, 1
    largest, row = max(tile_bytes(t) for t in types), n * (_ROW_OF_16S if "Q2_K" in types else _ROW)
    if not chip.large:
        one = _unclustered(n, tiles, types, slices, sides, chip)
        assert one is not None, "more tokens than `most_tokens`"
        return _unclustered_shape(one, slices, chip)
    if slices > 1 and whole * sides * -(-width // _COLUMNS) <= _SMALL_TILES * chip.processors:
        small = _small(n, tiles, width, types, slices, sides, row, chip)
        if small is not None:
            return small
    if slices == 1:
        units, mt, blocks = _unsplit(n, tiles * sides / chip.processors, _kind(types), sides)
        ks = 1
    else:
        clusters = (1, 2, 4) if slices > _MAX_SLICES and types == _CLUSTER_4_TYPES else (1, 2)
        found = _of_part(n, tiles, sides, slices, _kind(types), chip, row, largest) if tiles < whole else None
        units, mt, ks = found or _balanced(n, tiles, sides, slices, _kind(types), chip, row, largest, clusters)
    shared = ((chip.shared + 1) // blocks - 4) * 1024
    return {
        "K_SLICES": ks,
        "CLUSTER": slices // ks,
        "ROW_UNITS": units,
        "MT": mt,
        "X_COLUMNS": _COLUMNS,
        "X_STAGES": _ahead(n, ks * row, ks * units * mt * largest, shared, ks, -(-width // (slices * _COLUMNS))),
        "BLOCKS_PER_SM": blocks,
        "SMEM_BYTES": shared,
    }


def one_token(
    tiles: int, width: int, types: tuple[str, ...], chip: Chip, *, gated: bool, whole: int | None = None
) -> dict[str, int]:
    """Return constants of a launch of one token that differ from those of `shape`; empty if none do.

    Where two blocks share a multiprocessor and K is not split, the shared memory of one token leaves space for more weights.
    """
    large = chip.large and not gated and slices_of(whole or tiles, width, types, chip, gated=gated) == 1
    return dict(_ONE_TOKEN) if large and tiles / chip.processors >= _TILES_FOR_2_BLOCKS else {}


def most_tokens(tiles: int, width: int, types: tuple[str, ...], chip: Chip, *, gated: bool, whole: int | None = None) -> int:
    """Return the largest number of tokens of a launch; more tokens take several launches."""
    if chip.large:
        return TOKENS[0]
    slices = slices_of(whole or tiles, width, types, chip, gated=gated)
    half, *larger = (_unclustered(n, tiles, types, slices, 2 if gated else 1, chip) for n in (16, 24, 32))
    if half is None:
        return 8
    return max((n for n, one in zip((24, 32), larger, strict=True) if one and one.cost < 2 * half.cost), default=16)


@cache
def _unclustered(n: int, tiles: int, types: tuple[str, ...], slices: int, sides: int, chip: Chip) -> Launch | None:
    """Return a launch where blocks share no K slices; None if the tokens leave no space for the weights."""
    row, largest = _ROW_OF_16S if "Q2_K" in types else _ROW, max(tile_bytes(t) for t in types)
    warps, room = WARPS[_kind(types)][n], (chip.shared - _RESERVED) * 1024
    return launch(n, tiles, sides, slices, chip.processors, room=room, row=row, largest=largest, warps=warps)


def _unclustered_shape(one: Launch, slices: int, chip: Chip) -> dict[str, int]:
    """Return the kernel's constants for a launch where blocks share no K slices."""
    return {
        "K_SLICES": slices,
        "CLUSTER": 1,
        "ROW_UNITS": one.units,
        "MT": one.tiles,
        "X_COLUMNS": _COLUMNS,
        "X_STAGES": one.ahead,
        "BLOCKS_PER_SM": 1,
        "SMEM_BYTES": (chip.shared - _RESERVED) * 1024,
    }


def _small(
    n: int, tiles: int, width: int, types: tuple[str, ...], slices: int, sides: int, row: int, chip: Chip
) -> dict[str, int] | None:
    """Return constants of a launch whose blocks keep all their weights in shared memory; None if these do not fit.

    All weights are then requested before the tokens are ready, and a block takes no more shared memory than it needs, so
    that blocks of the next launch may start beside it. `row` is the bytes of a token's columns of a stage.
    """
    columns = max(end - start for start, end in pairwise(cuts(width, slices)))
    stages = min(4, -(-columns // _COLUMNS))
    # a few rows that are not quantised, as those of gates, may stream
    resident = [t for t in types if tile_width(t) == _COLUMNS] or types
    of_warp = max(tile_bytes(t) * min(8, -(-columns // tile_width(t))) for t in resident)
    of_warp = max(of_warp, *map(tile_bytes, types))
    for cluster, mt in _SMALL_CHOICES:
        ks, units = slices // cluster, sides * -(-tiles // (chip.processors // cluster * mt))
        if slices % cluster or ks * units > min(_SMALL_WARPS, _MOST_WARPS[_kind(types)][n][mt - 1]):
            continue
        of_sums = sides * -(-units // sides * mt * n // 8 // cluster) * slices * 512
        # for 16 tokens two stages that are refilled were slower than weights that stream
        for ahead in range(stages, min(stages, 3 if n == 16 else 2) - 1, -1):
            shared = -(-max(ks * (units * mt * of_warp + ahead * row), of_sums) // 1024) * 1024
            if shared <= (chip.shared - 3) * 1024:
                return {
                    "K_SLICES": ks,
                    "CLUSTER": cluster,
                    "ROW_UNITS": units,
                    "MT": mt,
                    "X_COLUMNS": _COLUMNS,
                    "X_STAGES": ahead,
                    "BLOCKS_PER_SM": 1,
                    "SMEM_BYTES": shared,
                }
    return None


def _ahead(n: int, part: int, stage: int, shared: int, ks: int, parts: int) -> int:
    """Return the stages of activations, of `part` bytes each, that fit shared memory beside stages of the weights.

    Where four stages hold the `parts` of a slice, or nearly, one stage of weights is enough beside them.
    """
    choices = [(4, 1), (3, 1)] if ks > 2 and parts <= _FEW_PARTS else [(4, 2), (3, 2), (4, 1), (3, 1)]
    if n <= 16 and ks <= 2 and parts == _FEW_PARTS:
        choices.insert(0, (parts, 2))
    ahead = next((a for a, stages in choices if a * part + stages * stage <= shared), 2)
    return min(ahead, parts) if n == 16 and ks > 2 else ahead


def cuts(width: int, slices: int) -> list[int]:
    """Return the first column of each K slice, and the width."""
    parts = -(-width // _COLUMNS)
    return [min(width, parts * i // slices * _COLUMNS) for i in range(slices + 1)]


def _kind(types: tuple[str, ...]) -> int:
    """Return the row of `_MOST_WARPS` for a set of types."""
    return 0 if len(types) > 2 else min(FORMATS[t].registers for t in types)


def _unsplit(n: int, share: float, kind: int, sides: int) -> tuple[int, int, int]:
    """Return units, tiles of a unit and blocks of a multiprocessor if K is not split."""
    blocks = 2 if sides == 1 and share >= _TILES_FOR_2_BLOCKS and n == 8 else 1
    most = min(_UNSPLIT_WARPS // blocks, _MOST_WARPS[kind][n][1])
    rounds = math.ceil(share / (2 * most))
    return min(most, sides * math.ceil(share / (2 * rounds * sides))) if blocks == 1 else most, 2, blocks


def _of_part(
    n: int, tiles: int, sides: int, slices: int, kind: int, chip: Chip, row: int, largest: int
) -> tuple[int, int, int] | None:
    """Return units, tiles of a unit and slices of a block for part of a matrix, or None if these do not fit.

    A block has up to four slices and units of one tile, which was fastest for the halves of a 27B or nearly so. The slices
    of the whole matrix are more than such a launch would choose, so that few tiles are left for each warp.
    """
    ks = min(slices, _MAX_SLICES)
    units = sides * -(-tiles // (chip.processors // (slices // ks)))
    fits = ks * (2 * row + units * largest) <= (chip.shared - 3) * 1024
    return (units, 1, ks) if n <= _PART_ROWS and fits and ks * units <= _MOST_WARPS[kind][n][0] else None


def _balanced(
    n: int, tiles: int, sides: int, slices: int, kind: int, chip: Chip, row: int, largest: int, clusters: Sequence[int]
) -> tuple[int, int, int]:
    """Return units, tiles of a unit and slices of a block with the lowest estimated cost.

    `row` and `largest` are the bytes of a stage of activations and of a tile, `clusters` the cluster sizes to try.
    """
    best, least = (sides, 1, slices), math.inf
    few = n == 16 and sides == 1 and tiles <= _FEW_TILES * chip.processors
    clustering = _CLUSTER_COST_OF_FEW if few else _CLUSTER_COST[sides - 1][n]
    for cluster in clusters:
        if slices % cluster or slices > cluster * (2 * _MAX_SLICES if n == 8 else _MAX_SLICES):
            continue
        ks, at_once = slices // cluster, int(chip.processors * (_CLUSTER_4_SHARE if cluster == 4 else 1)) // cluster
        for mt in (1, 2, 3):
            room = ((chip.shared - 3) * 1024 - ks * 2 * row) // (ks * mt * largest)
            most = min(room, _MOST_WARPS[kind][n][mt - 1] // ks) // sides * sides
            if most < sides:
                continue
            rounds = -(-tiles * sides // (most * mt * at_once))
            units = sides * -(-tiles // (rounds * at_once * mt))
            if (mt == 3 and ks * units * mt < _TILES_FOR_TRIPLES) or (cluster == 4 and (mt == 1 or rounds > 1)):
                continue
            cost = rounds * units * mt / cluster * max(1, _TILES_IN_FLIGHT / (ks * units * mt))
            cost *= (_SINGLE_TILE_COST[n] if kind == 3 else 1, 1, _TRIPLE_TILE_COST)[mt - 1] * (
                _SMALL_BLOCK_COST if ks * units < _SMALL_BLOCK_WARPS else 1
            )
            cost += (0, *clustering)[cluster // 2] + _WAVE_COST * (rounds - 1)
            if cost < least:
                best, least = (units, mt, ks), cost
    return best
