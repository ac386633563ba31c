"""Intermediate arrays of a draft model, allocated once."""

from dflash.kernels.arrays import empty
from dflash.model.draft.config import DraftConfig
from dflash.model.workspace import RowArrays


def block_space(config: DraftConfig, n_rows: int) -> RowArrays:
    """Allocate the arrays for the rows of blocks.

    Returns: ``stream``, ``normed``, ``query``, ``key``, ``value``, ``attended``, ``inner``, ``cos``, ``sin``; a DFlash 2
        draft also has ``change`` (dynamic taps of the convolutions), ``mixed`` (input of a sublayer) and ``product`` (its
        output).
    """
    q, kv = config.heads * config.head_size, config.kv_heads * config.head_size
    widths = {"stream": config.width, "normed": config.width, "query": q, "key": kv, "value": kv, "attended": q}
    widths |= {"inner": config.ffn, "cos": config.n_rot // 2, "sin": config.n_rot // 2}
    if config.conv_width:
        changes = 2 * config.conv_width * (config.width // config.conv_group)
        widths |= {"change": changes, "mixed": config.width, "product": config.width}
    return _rows(n_rows, widths)


def context_space(config: DraftConfig, n_rows: int) -> RowArrays:
    """Allocate the arrays for context rows.

    Returns: ``features``, ``fused``, ``cos``, ``sin``, and for each layer ``key0``, ``value0``, ``key1``, ...
    """
    widths = {"features": len(config.target_layer_ids) * config.width, "fused": config.width}
    widths |= {"cos": config.n_rot // 2, "sin": config.n_rot // 2}
    for i in range(config.n_layers):
        widths |= dict.fromkeys((f"key{i}", f"value{i}"), config.kv_heads * config.head_size)
    return _rows(n_rows, widths)


def _rows(n_rows: int, widths: dict[str, int]) -> RowArrays:
    return RowArrays(n_rows, {name: empty(n_rows, width) for name, width in widths.items()})
