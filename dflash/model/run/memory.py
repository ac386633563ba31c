"""Memory of the layers that the ops of a program use."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from dflash.kernels.conv.memory import ConvMemory
from dflash.kernels.delta.memory import DeltaMemory
from dflash.model.config import Config
from dflash.model.state.pools import Pools


class Memory(NamedTuple):
    """Keys and values, state of the convolution and of the delta rule, by layer."""

    caches: Mapping[int, tuple[Any, Any]]
    conv: Mapping[int, ConvMemory]
    delta: Mapping[int, DeltaMemory]

    @classmethod
    def of(cls, config: Config, pools: Pools, layers: Iterable[int] | None = None) -> "Memory":
        """Return the memory of a model, or of those of its layers that `pools` is for."""
        layers = range(config.n_layers) if layers is None else layers
        recurrent = [i for i in layers if config.recurrent[i]]
        if config.layers:
            caches = {i: pools.layer_cache(i) for i in config.kv_shapes}
        else:
            full = (i for i in layers if not config.recurrent[i])
            caches = {i: (pools.k[number], pools.v[number]) for number, i in enumerate(full)}
        return cls(caches, dict(zip(recurrent, pools.conv, strict=True)), dict(zip(recurrent, pools.delta, strict=True)))

    @classmethod
    def of_rings(cls, k: Any, v: Any) -> "Memory":
        """Return the memory of a draft model with these rings (L, ...)."""
        return cls({i: (k[i], v[i]) for i in range(len(k))}, {}, {})


NO_MEMORY = Memory({}, {}, {})
