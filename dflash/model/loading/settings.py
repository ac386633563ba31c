"""Settings with which a model is loaded."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from dflash.errors import RequestError, Unsupported
from dflash.kernels.kv_types import kv_types
from dflash.kernels.ragged import PENDING
from dflash.model.config import check_pending
from dflash.model.split.names import SPLITS, device_number, device_numbers

DEVICES = ("auto", "cpu", "cuda")

PREFILL_TYPES = ("f16", "int8")
"""Types to which the multiplies of prompts on a GPU round tokens and weights; see `dflash.load`."""

MAX_SEQUENCES = 1024
"""Most sequences at a time, which bounds the memory of slots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """Settings of a model and its engine; `dflash.load` explains those not named here.

    max_waiting: maximum sequences that wait to start; None is unlimited.
    max_step_ms: most milliseconds of a step in which prompts delay sequences that decode; True is the default of the device
        (`dflash.generation.load.MAX_STEP_MS`), False is unlimited.
    draft_budget: draft fewer tokens where more would make answers slower; see `DraftBudget`.
    """

    device: str = "auto"
    devices: Sequence[str | int] | None = None
    split: str | None = None
    threads: int | None = None
    context: int | None = None
    sequences: int = 8
    mmap: bool = True
    kv: str = "f16"
    kv_bytes: int | None = None
    prefill: str = "f16"
    unpacked_bytes: int | None = None
    pending: int | None = None
    prefix_cache: bool | int = False
    prefix_cache_folder: str | os.PathLike[str] | None = None
    prefix_cache_disk: int | None = None
    prefix_cache_exact: bool = True
    prefix_cache_reread: bool = False
    swap_bytes: int | None = None
    isolate: bool = True
    chat_template: str | os.PathLike[str] | None = None
    trusted_messages: bool = False
    max_waiting: int | None = None
    max_step_ms: bool | float = False
    draft_budget: bool = False

    def __post_init__(self) -> None:
        if self.prefix_cache_folder is not None and not self.prefix_cache:
            raise RequestError("prefix_cache_folder: needs a prefix cache; add prefix_cache=True or a number of bytes")
        if self.prefix_cache_disk is not None and self.prefix_cache_folder is None:
            raise RequestError("prefix_cache_disk: needs prefix_cache_folder, the folder of the files")
        if self.device not in DEVICES and device_number(self.device) is None:
            raise Unsupported(f"device {self.device!r}: must be one of {', '.join(DEVICES)}, or a GPU as cuda:1")
        kv_types(self.kv)
        if self.prefill not in PREFILL_TYPES:
            raise Unsupported(f"prefill {self.prefill!r}: must be one of {', '.join(PREFILL_TYPES)}")
        for name, least in (("threads", 1), ("context", 1), ("sequences", 1), ("swap_bytes", 0), ("unpacked_bytes", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise RequestError(f"{name} is {value}, must be at least {least}")
        if self.sequences > MAX_SEQUENCES:
            raise RequestError(f"sequences is {self.sequences}, must be at most {MAX_SEQUENCES}")
        if self.pending is not None:
            check_pending(self.pending)
        if self.split is not None and self.split not in SPLITS:
            raise RequestError(f"split is {self.split!r}, must be one of {', '.join(SPLITS)}")
        if self.split is not None and self.devices is None:
            raise RequestError(f"split is {self.split!r}: needs devices, such as devices=['cuda:0', 'cuda:1']")
        if self.gpus and (self.device == "cpu" or device_number(self.device) is not None):
            raise RequestError(f"devices: names GPUs, but device is {self.device!r}; give one of the two")

    @property
    def gpus(self) -> tuple[int, ...]:
        """CUDA device numbers of a split; none if the model is not split."""
        return () if self.devices is None else device_numbers(self.devices)

    @property
    def target_device(self) -> str:
        """Device to run on: a split runs on GPUs."""
        return "cuda" if self.gpus else self.device

    @property
    def split_kind(self) -> str:
        """Kind of a split, one of `SPLITS`."""
        return self.split or SPLITS[0]

    @property
    def max_pending(self) -> int:
        """Most pending rows of a sequence; on one GPU there may be fewer if `pending` is None."""
        return PENDING if self.pending is None else self.pending
