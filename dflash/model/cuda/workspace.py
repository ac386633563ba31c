"""Intermediate arrays of a pass, allocated once for its largest number of rows.

Linear attention, full attention and the feed forward never run at the same time, so that their arrays share memory. Inputs
of matrix multiplies are float16, all other arrays float32.
"""

from types import SimpleNamespace

import numpy as np

from dflash.kernels.gpu import device
from dflash.kernels.kv_types import kv_types
from dflash.kernels.norm.split import sums
from dflash.model.config import Config

_LINE = 256

HALF, SINGLE = np.dtype(np.float16), np.dtype(np.float32)
Arrays = dict[str, tuple[np.dtype, int]]


def workspace(config: Config, n_rows: int, kv: str) -> SimpleNamespace:
    """Make the arrays of a pass of up to `n_rows` rows.

    Parameters
    ----------
    config : Config
        Sizes of the model.
    n_rows : int
    kv : str
        Type of the KV cache; rotated queries are float32 for ``"f32"``, else bits of float16.

    Returns
    -------
    SimpleNamespace
        ``stream`` float32 (N, D), the residual stream; ``normed`` float16 (N, D), the input of a mixer or feed forward;
        ``squares`` float32 (N, S), the sums of a `SplitNorm`. ``hidden`` and ``wanted``, after the last norm, share the
        memory of ``stream`` and ``normed``. ``cos``, ``sin`` float32 (N, R). ``mixed``, ``gate``, ``alpha``, ``beta``,
        ``heads`` of linear attention, ``query``, ``key``, ``value``, ``rotated``, ``attended`` of full attention and
        ``inner`` of the dense feed forward lie in ``arena``.
    """
    always, parts = _shapes(config, kv)
    arena = device.empty(max(_size(part, n_rows) for part in parts), dtype=np.uint8)
    arrays = {name: device.empty(n_rows, width, dtype=dtype) for name, (dtype, width) in always.items()}
    for part in parts:
        at = 0
        for name, (dtype, width) in part.items():
            n_bytes = n_rows * width * dtype.itemsize
            arrays[name] = arena[at : at + n_bytes].view(dtype).reshape(n_rows, width)
            at += -(-n_bytes // _LINE) * _LINE
    return SimpleNamespace(n_rows=n_rows, arena=arena, hidden=arrays["stream"], wanted=arrays["normed"], **arrays)


def workspace_bytes(config: Config, n_rows: int, kv: str) -> int:
    """Return the bytes that `workspace` allocates."""
    always, parts = _shapes(config, kv)
    return _size(always, n_rows) + max(_size(part, n_rows) for part in parts)


def _size(part: Arrays, n_rows: int) -> int:
    return sum(n_rows * width * dtype.itemsize + _LINE for dtype, width in part.values())


def _shapes(config: Config, kv: str) -> tuple[Arrays, tuple[Arrays, ...]]:
    """Return the arrays with memory of their own, and groups of arrays that share memory."""
    width, head = config.width, config.heads * config.head_size
    values = config.delta_value_heads * config.delta_size
    conv = 2 * config.delta_key_heads * config.delta_size + values
    gated = 2 if config.blocks.gated else 1
    row = config.kv_heads * config.head_size
    always: Arrays = {"stream": (SINGLE, width), "normed": (HALF, width), "squares": (SINGLE, sums(width))}
    always |= {"cos": (SINGLE, config.n_rot // 2), "sin": (SINGLE, config.n_rot // 2)}
    linear: Arrays = {
        "mixed": (SINGLE, conv),
        "gate": (SINGLE, values),
        "alpha": (SINGLE, config.delta_value_heads),
        "beta": (SINGLE, config.delta_value_heads),
        "heads": (HALF, values),
    }
    full: Arrays = {
        "query": (SINGLE, gated * head),
        "key": (SINGLE, row),
        "value": (SINGLE, row),
        "rotated": (SINGLE if kv_types(kv)[0].dtype == np.float32 else np.dtype(np.uint16), head),
        "attended": (HALF, head),
    }
    return always, (linear, full, {"inner": (HALF, config.ffn)})
