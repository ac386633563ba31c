"""Pools of sequences whose arrays are on several devices."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from dflash.model.split.plan import SplitPlan
from dflash.model.state.pools import PoolBackend, Pools


class SplitPools(Pools):
    """Pools that account for pages and slots once, with arrays on every device of a plan.

    Its own arrays are those of the first device.

    devices: for each device a reusable context in which it is the current one.
    """

    def __init__(
        self,
        plan: SplitPlan,
        devices: Sequence[AbstractContextManager[Any]],
        *,
        slots: int,
        kv: str = "f16",
        backend: PoolBackend | None = None,
    ) -> None:
        self.others = list[Pools]()
        with devices[0]:
            super().__init__(plan.devices[0].config, pages=plan.n_pages, slots=slots, kv=kv, backend=backend)
        for device, part in zip(devices[1:], plan.devices[1:], strict=True):
            with device:
                self.others.append(Pools(part.config, pages=plan.n_pages, slots=slots, kv=kv, backend=backend))
        self.layout = plan.layout

    @property
    def parts(self) -> list[Pools]:
        """Pools of all devices."""
        return [self, *self.others]

    @property
    def caches(self) -> list[tuple[Any, Any]]:
        """See `Pools.caches`."""
        return [(part.k, part.v) for part in self.parts]

    def slot_views(self, slot: int) -> list[Any]:
        """Return views of the recurrent state of a slot, one device after the other."""
        own = super().slot_views(slot)
        return own + [view for part in self.others for view in part.slot_views(slot)]
