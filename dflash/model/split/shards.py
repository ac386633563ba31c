"""The part of a model that one of several devices has in a tensor split.

Every matrix is divided by its rows, so that each output is one sum over the whole of K, in the order of one device. A device
has some key heads with their value heads, some KV heads with their query heads, and equal parts of the feed forward and of
the residual stream's columns. Activations that a matrix multiplies with are gathered from all devices before.
"""

import re
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dflash.errors import Unsupported
from dflash.kernels.formats import Matrix
from dflash.model.config import Config
from dflash.model.gguf.header import Value
from dflash.model.weights import Weights

TILE = 16
"""Rows of a tile of packed weights and columns of a sum of squares: parts of a matrix begin at multiples of it."""


class Columns(NamedTuple):
    """Columns of a gathered array that one device computes: ranges of `size`, each `step` after the one before.

    first, size, step, n: first column, columns of a range, distance of two ranges, number of ranges.
    """

    first: int
    size: int
    step: int
    n: int

    @property
    def ranges(self) -> list[slice]:
        """The ranges, in the order of the device's own columns."""
        starts = [self.first + i * self.step for i in range(self.n)]
        return [slice(start, start + self.size) for start in starts]


class Shard(NamedTuple):
    """One of the devices of a tensor split."""

    rank: int
    of: int

    def columns(self, n: int, *, groups: int = 1) -> Columns:
        """Return the part of `n` columns that are `groups` equal groups: an equal part of each group."""
        size = n // groups // self.of
        return Columns(self.rank * size, size, n // groups, groups)

    def rows(self, n: int) -> slice:
        """Return the part of `n` rows of the LM head; parts are equal except for whole tiles."""
        ends = [-(-n * rank // (self.of * TILE)) * TILE for rank in (self.rank, self.rank + 1)]
        return slice(ends[0], min(ends[1], n))


def shard_config(config: Config, shards: int) -> Config:
    """Return the sizes of one device: its heads, and its part of the feed forward."""
    sizes = {
        "KV heads": config.kv_heads,
        "key heads of linear attention": config.delta_key_heads,
        f"tiles of {TILE} columns": config.width // TILE if config.width % TILE == 0 else 1,
        f"tiles of {TILE} inner columns": config.ffn // TILE,
    }
    for what, n in sizes.items():
        if n % shards:
            raise Unsupported(
                f"split 'tensor': {shards} devices can't share {n} {what}; use split='layer' or a divisor of {n}"
            )
    return replace(
        config,
        heads=config.heads // shards,
        kv_heads=config.kv_heads // shards,
        delta_key_heads=config.delta_key_heads // shards,
        delta_value_heads=config.delta_value_heads // shards,
        ffn=config.ffn // shards,
    )


def value_groups(config: Config) -> int:
    """Return the runs of value heads, one head for each key head, or 1 if the value heads of a key head are neighbours."""
    return 1 if config.blocks.grouped else config.delta_value_heads // config.delta_key_heads


def own_rows(config: Config, shard: Shard, name: str, *, recurrent: bool) -> list[slice]:
    """Return the rows of a block's tensor that a device has, in the order in which it stores them."""
    groups = value_groups(config) if recurrent else 1
    keys, values = config.delta_key_heads * config.delta_size, config.delta_value_heads * config.delta_size
    stem = name.removesuffix(".weight").removesuffix(".bias")
    if recurrent and stem in ("attn_qkv", "ssm_conv1d"):
        mixed = (shard.columns(keys).ranges, shard.columns(keys).ranges, shard.columns(values, groups=groups).ranges)
        return [
            slice(start + part.start, start + part.stop)
            for start, parts in zip((0, keys, 2 * keys), mixed, strict=True)
            for part in parts
        ]
    if recurrent and stem == "attn_gate":
        return shard.columns(values, groups=groups).ranges
    if recurrent and stem in ("ssm_alpha", "ssm_beta", "ssm_a", "ssm_dt"):
        return shard.columns(config.delta_value_heads, groups=groups).ranges
    gated = 2 if config.blocks.gated else 1
    sizes = {
        "attn_q": gated * config.heads * config.head_size,
        "attn_k": config.kv_heads * config.head_size,
        "attn_v": config.kv_heads * config.head_size,
        "ffn_gate": config.ffn,
        "ffn_up": config.ffn,
        **dict.fromkeys(("attn_output", "ssm_out", "ffn_down"), config.width),
    }
    return shard.columns(sizes[stem]).ranges if stem in sizes else []


class ShardWeights:
    """The weights of one device, by the names of `Weights`."""

    def __init__(self, whole: Weights, config: Config, shard: Shard) -> None:
        self._whole, self._config, self._shard, self._prefix = whole, config, shard, ""

    @property
    def metadata(self) -> Mapping[str, Value]:
        """Metadata of the file."""
        return self._whole.metadata

    def block(self, i: int) -> "ShardWeights":
        """Return the weights of block i, named without ``blk.i.``."""
        weights = copy(self)
        weights._whole, weights._prefix = self._whole.block(i), f"blk.{i}."
        return weights

    def __contains__(self, name: str) -> bool:
        return name in self._whole

    def n_parts(self, name: str) -> int:
        """Return the number of equal parts of a block's matrix, of which a device has one."""
        return self._shard.of if self._rows(name) else 1

    def matrix(self, name: str) -> Matrix:
        """Return the device's rows of a matrix. The embedding is whole, the LM head is a part of its rows."""
        matrix = self._whole.matrix(name)
        if name == "output.weight":
            return matrix.rows(self._shard.rows(matrix.shape[0]))
        return _some(matrix, self._rows(name))

    def vector(self, name: str) -> NDArray[np.float32]:
        """Return the device's part of a small tensor; norms are whole."""
        values, rows = self._whole.vector(name), self._rows(name)
        return np.concatenate([values[part] for part in rows]) if rows else values

    def _rows(self, name: str) -> list[slice]:
        of_block = re.fullmatch(r"blk\.(\d+)\.(.*)", self._prefix + name)
        if of_block is None:
            return []
        recurrent = self._config.recurrent[int(of_block[1])]
        return own_rows(self._config, self._shard, of_block[2], recurrent=recurrent)


def _some(matrix: Matrix, rows: list[slice]) -> Matrix:
    """Return some rows of a matrix: a view if they are one range, all if there is no range."""
    if not rows:
        return matrix
    parts: list[Any] = [matrix.rows(part) for part in rows]
    if len(parts) == 1:
        return parts[0]
    return Matrix(np.concatenate([part.data for part in parts]), matrix.type, matrix.name)
