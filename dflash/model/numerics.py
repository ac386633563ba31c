"""Number types of a loaded model that change its results."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dflash.model.cuda.model import DeviceModel
    from dflash.model.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """Settings of loading that change results. Saved states, environments, servers, studies and compile marks name all.

    kv, prefill: as in `dflash.load`. Records older than a field have its default.
    """

    kv: str
    prefill: str = "f16"


def numerics_of(model: "Model | DeviceModel") -> Numerics:
    """Return the number types of a loaded model."""
    return Numerics(kv=model.pools.kv, prefill=model.config.prefill)
