"""State of the machine during a cell: clocks, copy bandwidth, load of others."""

import os
import statistics
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from dflash.evaluation.study.runners.clocks import cpu_clocks, gpu_clocks
from dflash.evaluation.tables import Values
from dflash.kernels import copy
from dflash.kernels.gpu.device import bus_id

if TYPE_CHECKING:
    from dflash.lm import LM


class MachineState:
    """Reads the clocks of a model's device after each batch of requests, while they are still those of the work."""

    def __init__(self, lm: "LM") -> None:
        device, threads = lm.model.device, lm.model.threads
        self._bus_id = lm.call(bus_id) if device == "cuda" else None
        self._copy = lm.call(partial(_bandwidth, device, self._bus_id, threads))
        self._read: list[dict[str, float]] = []

    def sample(self) -> None:
        """Read the clocks once."""
        found = cpu_clocks() if self._bus_id is None else gpu_clocks(self._bus_id)
        if found is not None:
            self._read.append(found)

    def as_dict(self) -> Values:
        """Return the copy bandwidth, the medians of what was read since the last call, and the load of the machine.

        ``clocks`` is None where the system does not say; ``sm_min_mhz`` or ``core_min_mhz`` is the slowest sample.
        ``load`` is the mean number of runnable processes of the last minute, these included.
        """
        read, self._read = self._read, []
        found = {name: statistics.median(one[name] for one in read) for name in (read[0] if read else ())}
        main = "core" if self._bus_id is None else "sm"
        if f"{main}_mhz" in found:
            found[f"{main}_min_mhz"] = min(one[f"{main}_mhz"] for one in read)
        load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
        return {"copy_bytes_per_second": self._copy, "clocks": found or None, "load": load}


@lru_cache(maxsize=8)
def _bandwidth(device: str, bus_id: str | None, threads: int) -> float:  # noqa: ARG001 - each GPU is measured
    """Return the bytes that a copy reads and writes in a second, measured once in a process; the GPU is the current one."""
    return copy.bandwidth(device, threads=threads)
