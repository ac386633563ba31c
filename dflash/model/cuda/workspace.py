"""Intermediate arrays of a pass, allocated once for its largest number of rows.

Linear attention, full attention and the feed forward never run at the same time, so that their arrays share memory. Inputs
of matrix multiplies are float16, all other arrays float32.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np

from dflash.kernels.gpu import device
from dflash.kernels.kv_types import kv_types
from dflash.kernels.norm.split import sums
from dflash.model.config import Config
from dflash.model.layer_sizes import LayerSizes

_LINE = 256

HALF, SINGLE = np.dtype(np.float16), np.dtype(np.float32)
Arrays = dict[str, tuple[np.dtype, int]]


def workspace(config: Config, n_rows: int, kv: str) -> SimpleNamespace:
    """Make the arrays of a pass of up to `n_rows` rows.

    kv: type of the KV cache; rotated queries are float32 for ``"f32"``, else bits of float16.
    Returns: arrays by the names of buffers (`dflash.model.network`): ``stream`` float32 (N, D); ``normed`` float16 (N, D),
        the input of a mixer or feed forward; ``squares`` float32 (N, S), the sums of a `SplitNorm`. ``hidden`` and
        ``wanted``, after the last norm, share the memory of ``stream`` and ``normed``. Arrays of linear attention, of full
        attention and of the feed forward share the ``arena``. Where layers differ, ``of_layers`` has these by `LayerSizes`,
        and outputs that are normed before they are added share one array.
    """
    always, parts = _shapes(config, kv)
    arena = device.empty(max(_size(part, n_rows) for part in parts), dtype=np.uint8)
    arrays = {name: device.empty(n_rows, width, dtype=dtype) for name, (dtype, width) in always.items()}
    if "expert_out" in arrays:
        arrays["expert_out"].fill(0)
    if "added" in arrays:
        arrays |= dict.fromkeys(("attn_output", "ffn_down", "proj"), arrays["added"])
    of_layers = {}
    for sizes in config.layers:
        own = _placed(arena, _full(sizes, kv), n_rows) | _placed(arena, {"inner": (HALF, sizes.ffn)}, n_rows)
        of_layers[sizes] = SimpleNamespace(n_rows=n_rows, **arrays, **own)
    for part in parts:
        arrays |= _placed(arena, part, n_rows)
    shared = {"hidden": arrays["stream"], "wanted": arrays["normed"], "of_layers": of_layers}
    return SimpleNamespace(n_rows=n_rows, arena=arena, **shared, **arrays)


def workspace_bytes(config: Config, n_rows: int, kv: str) -> int:
    """Return the bytes that `workspace` allocates."""
    always, parts = _shapes(config, kv)
    return _size(always, n_rows) + max(_size(part, n_rows) for part in parts)


def _placed(arena: Any, part: Arrays, n_rows: int) -> dict[str, Any]:
    """Return the arrays of a group, one after the other in the arena."""
    arrays, at = {}, 0
    for name, (dtype, width) in part.items():
        n_bytes = n_rows * width * dtype.itemsize
        arrays[name] = arena[at : at + n_bytes].view(dtype).reshape(n_rows, width)
        at += -(-n_bytes // _LINE) * _LINE
    return arrays


def _size(part: Arrays, n_rows: int) -> int:
    return sum(n_rows * width * dtype.itemsize + _LINE for dtype, width in part.values())


def _shapes(config: Config, kv: str) -> tuple[Arrays, tuple[Arrays, ...]]:
    """Return the arrays with memory of their own, and groups of arrays that share memory."""
    width = config.width
    values = config.delta_value_heads * config.delta_size
    conv = 2 * config.delta_key_heads * config.delta_size + values
    always: Arrays = {"stream": (SINGLE, width), "normed": (HALF, width), "squares": (SINGLE, sums(width))}
    always |= {"cos": (SINGLE, config.n_rot // 2), "sin": (SINGLE, config.n_rot // 2)}
    if config.window_rotation is not None:
        always |= dict.fromkeys(("window_cos", "window_sin"), (SINGLE, config.window_rotation.n_rot // 2))
    if config.blocks.normed_outputs:
        always |= {"added": (SINGLE, width)} | ({"expert_out": (SINGLE, width)} if config.experts else {})
    every = config.n_layers * config.per_layer
    if every:
        always |= {"per_layer_model_proj": (SINGLE, every), "inp_gate": (SINGLE, config.per_layer)}
        always |= {"layer_inner": (HALF, config.per_layer)}
    linear: Arrays = {
        "attn_qkv": (SINGLE, conv),
        "attn_gate": (SINGLE, values),
        "ssm_alpha": (SINGLE, config.delta_value_heads),
        "ssm_beta": (SINGLE, config.delta_value_heads),
        "heads": (HALF, values),
    }
    if config.layers:
        full = tuple(_full(sizes, kv) for sizes in dict.fromkeys(config.layers))
        return always, (*full, {"inner": (HALF, config.ffn)}, {"token_part": (SINGLE, every)})
    usual = LayerSizes(config.heads, config.kv_heads, config.head_size, 0, 0, config.ffn)
    return always, (linear, _full(usual, kv, gated=config.blocks.gated), {"inner": (HALF, config.ffn)})


def _full(sizes: LayerSizes, kv: str, *, gated: bool = False) -> Arrays:
    """Return the arrays of full attention in a layer of these sizes."""
    head, row = sizes.heads * sizes.head_size, sizes.kv_heads * sizes.head_size
    arrays: Arrays = {
        "attn_q": (SINGLE, 2 * head if gated else head),
        "attn_k": (SINGLE, row),
        "attn_v": (SINGLE, row),
        "rotated": (SINGLE if kv_types(kv)[0].dtype == np.float32 else np.dtype(np.uint16), head),
        "attended": (HALF, head),
    }
    return arrays | ({"attn_gate": (SINGLE, sizes.gate)} if sizes.gate else {})
