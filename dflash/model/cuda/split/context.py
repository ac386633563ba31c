"""All that the passes of a split are made of."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from dflash.kernels.gpu.devices import Devices
from dflash.model.config import Config
from dflash.model.cuda.weights import DeviceWeights
from dflash.model.split.plan import SplitPlan
from dflash.model.split.pools import SplitPools


class SplitContext(NamedTuple):
    """Inputs from which the passes of a split are built.

    weights, tables: weights of the layers of each GPU, and those that belong to no layer.
    """

    devices: Devices
    plan: SplitPlan
    config: Config
    weights: Sequence[DeviceWeights[Any]]
    tables: Sequence[DeviceWeights[Any]]
    pools: SplitPools
