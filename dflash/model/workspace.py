"""Intermediate arrays of a forward, allocated once for its largest number of rows.

Linear attention, full attention and the feed forward never run at the same time, so that their arrays share memory.
"""

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from dflash.kernels.arrays import empty
from dflash.model.config import Config
from dflash.model.layered.sizes import LayerSizes


class RowArrays:
    """Named arrays of `n_rows` rows; `first` returns views of fewer rows.

    all: the arrays by name.
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

    stream, normed, hidden: float32 (N, D); residual stream, input of a mixer or feed forward, output of the last norm.
    mixed, convolved, gate, alpha, beta, read, heads: arrays of linear attention; see `LinearAttention`.
    query, key, value, rotated, attended, cos, sin: arrays of full attention; see `FullAttention`.
    inner: float32 (N, F); gated inner activation of the dense feed forward.
    router_in, expert_out: float32 (N, D); input of a router and output of the experts beside a dense feed forward.
    head_gate: float32 (N, heads) or (N, heads * head size); gate of attention in some architectures.
    window_cos, window_sin: as `cos` and `sin`, for layers with a window.
    per_layer, token_part: float32 (N, L * P); embeddings of the tokens for all layers, see `PerLayerEmbedding`.
    layer_gate: float32 (N, P); gate of one layer's part of them.
    """

    def __init__(self, config: Config, n_rows: int) -> None:
        d = config.delta_size
        values = config.delta_value_heads * d
        conv = 2 * config.delta_key_heads * d + values
        gated = 2 if config.blocks.gated else 1
        sizes = config.layers or (LayerSizes(config.heads, config.kv_heads, config.head_size, 0, 0, config.ffn),)
        always = {"stream": (config.width,), "normed": (config.width,), "hidden": (config.width,)}
        always |= {"cos": (config.n_rot // 2,), "sin": (config.n_rot // 2,)}
        linear = {
            "mixed": (conv,),
            "convolved": (conv,),
            "gate": (values,),
            "alpha": (config.delta_value_heads,),
            "beta": (config.delta_value_heads,),
        }
        if config.window_rotation is not None:
            always |= dict.fromkeys(("window_cos", "window_sin"), (config.window_rotation.n_rot // 2,))
        if config.blocks.beside:
            always |= dict.fromkeys(("router_in", "expert_out"), (config.width if config.experts else 0,))
        if config.per_layer:
            every = config.n_layers * config.per_layer
            always |= {"per_layer": (every,), "token_part": (every,), "layer_gate": (config.per_layer,)}
        kinds = {layer: (_attention_shapes(layer, gated), {"inner": (layer.ffn,)}) for layer in sizes}
        parts = [linear, *(part for of_kind in kinds.values() for part in of_kind)]
        arena = empty(n_rows * max(sum(map(math.prod, part.values())) for part in parts))
        arrays = {name: empty(n_rows, *shape) for name, shape in always.items()}
        self._layers = {
            layer: RowArrays(n_rows, arrays | _placed(arena, n_rows, full) | _placed(arena, n_rows, inner))
            for layer, (full, inner) in kinds.items()
        }
        arrays |= _placed(arena, n_rows, linear) | vars(self._layers[sizes[0]].all)
        # the delta rule no longer needs the input of the convolution, and the gated norm may overwrite its gate
        arrays["read"] = arrays["mixed"].reshape(-1)[: n_rows * values].reshape(n_rows, -1, max(d, 1))
        arrays["heads"] = arrays["gate"]
        super().__init__(n_rows, arrays)

    def of_layer(self, sizes: LayerSizes) -> RowArrays:
        """Return the arrays of a layer in its shapes, with those that all layers share."""
        return self._layers[sizes]


def _attention_shapes(sizes: LayerSizes, gated: int) -> dict[str, tuple[int, ...]]:
    query, row = sizes.heads * sizes.head_size, sizes.kv_heads * sizes.head_size
    shapes = {"query": (gated * query,), "key": (row,), "value": (row,), "rotated": (sizes.heads, sizes.head_size)}
    return shapes | {"attended": (query,), "head_gate": (sizes.gate,)}


def _placed(arena: Any, n_rows: int, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Return arrays of these shapes, one after the other in an arena."""
    arrays, at = {}, 0
    for name, shape in shapes.items():
        size = n_rows * math.prod(shape)
        arrays[name] = arena[at : at + size].reshape(n_rows, *shape)
        at += size
    return arrays
