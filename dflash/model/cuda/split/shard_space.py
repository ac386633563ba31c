"""Arrays of a pass on one GPU of a tensor split: own columns, and whole rows gathered from all GPUs."""

from types import SimpleNamespace
from typing import Any

from dflash.kernels.gpu import device
from dflash.kernels.norm.split import sums
from dflash.model.config import Config
from dflash.model.cuda.workspace import HALF, SINGLE, workspace
from dflash.model.split.shards import Shard


def shard_space(config: Config, part: Config, n_rows: int, kv: str, shard: Shard) -> SimpleNamespace:
    """Make the arrays of a pass of up to `n_rows` rows.

    Returns: as `workspace`. The inputs of multiplies, ``heads``, ``attended``, ``inner`` and ``normed``, and ``squares``,
        are whole rows; ``own`` has the columns of each that this GPU computes, and those of ``stream``. Other arrays have
        the columns of its heads.
    """
    space = workspace(part, n_rows, kv)
    own = SimpleNamespace(heads=space.heads, attended=space.attended)
    values, head = config.delta_value_heads * config.delta_size, config.heads * config.head_size
    space.heads, space.attended = _empty(n_rows, values, HALF), _empty(n_rows, head, HALF)
    space.inner = _empty(n_rows, config.ffn, HALF)
    own.stream, own.inner = (array[:, shard.columns(array.shape[1]).ranges[0]] for array in (space.stream, space.inner))
    own.normed, own.squares = (
        _empty(n_rows, config.width // shard.of, HALF),
        _empty(n_rows, sums(config.width) // shard.of, SINGLE),
    )
    space.own = own
    return space


def _empty(n_rows: int, width: int, dtype: Any) -> Any:
    return device.empty(n_rows, width, dtype=dtype)
