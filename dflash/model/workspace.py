"""Intermediate arrays of a forward, allocated once for its largest number of rows.

Linear attention, full attention and the feed forward never run at the same time, so that their arrays share memory.
"""

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from dflash.kernels.arrays import empty
from dflash.model.config import Config


class RowArrays:
    """Named arrays of `n_rows` rows; `first` returns views of fewer rows.

    Parameters
    ----------
    n_rows : int
    arrays : Mapping of str to array (n_rows, ...)

    Attributes
    ----------
    all : SimpleNamespace
        The arrays by name.
    """

    def __init__(self, n_rows: int, arrays: Mapping[str, Any]) -> None:
        self.n_rows, self._arrays = n_rows, arrays
        self._views: dict[int, SimpleNamespace] = {}
        self.all = SimpleNamespace(**arrays)

    def first(self, n: int) -> SimpleNamespace:
        """Return views of the first `n` rows of every array."""
        views = self._views.get(n)
        if views is None:
            views = SimpleNamespace(**{name: array[:n] for name, array in self._arrays.items()})
            self._views[n] = views
        return views


class ModelWorkspace(RowArrays):
    """Intermediate arrays of a target model.

    Parameters
    ----------
    config : Config
        Sizes of the model.
    n_rows : int
        Most rows of a forward.

    Attributes
    ----------
    stream, normed, hidden : float32 (N, D)
        Residual stream, input of a mixer or feed forward, output of the last norm.
    mixed, convolved, gate, alpha, beta, read, heads
        Arrays of linear attention; see `LinearAttention`.
    query, key, value, rotated, attended, cos, sin
        Arrays of full attention; see `FullAttention`.
    inner : float32 (N, F)
        Gated inner activation of the dense feed forward.
    """

    def __init__(self, config: Config, n_rows: int) -> None:
        d, size, head = config.delta_size, config.head_size, config.heads * config.head_size
        values = config.delta_value_heads * d
        conv = 2 * config.delta_key_heads * d + values
        gated = 2 if config.blocks.gated else 1
        always = {"stream": (config.width,), "normed": (config.width,), "hidden": (config.width,)}
        always |= {"cos": (config.n_rot // 2,), "sin": (config.n_rot // 2,)}
        linear = {
            "mixed": (conv,),
            "convolved": (conv,),
            "gate": (values,),
            "alpha": (config.delta_value_heads,),
            "beta": (config.delta_value_heads,),
        }
        full = {
            "query": (gated * head,),
            "key": (config.kv_heads * size,),
            "value": (config.kv_heads * size,),
            "rotated": (config.heads, size),
            "attended": (head,),
        }
        parts = (linear, full, {"inner": (config.ffn,)})
        arena = empty(n_rows * max(sum(map(math.prod, part.values())) for part in parts))
        arrays = {name: empty(n_rows, *shape) for name, shape in always.items()}
        for part in parts:
            at = 0
            for name, shape in part.items():
                size = n_rows * math.prod(shape)
                arrays[name] = arena[at : at + size].reshape(n_rows, *shape)
                at += size
        # the delta rule no longer needs the input of the convolution, and the gated norm may overwrite its gate
        arrays["read"] = arrays["mixed"].reshape(-1)[: n_rows * values].reshape(n_rows, -1, max(d, 1))
        arrays["heads"] = arrays["gate"]
        super().__init__(n_rows, arrays)
