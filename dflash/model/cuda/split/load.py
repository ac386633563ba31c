"""Plan a model over several GPUs, and load it."""

from collections.abc import Callable

from dflash.kernels.gpu.devices import Devices, free_memory_of
from dflash.model.config import Config
from dflash.model.cuda.load import RESERVE, work_bytes
from dflash.model.cuda.split.model import SplitDeviceModel
from dflash.model.gguf.file import GGUFFile
from dflash.model.loading.settings import LoadSettings
from dflash.model.split.plan import SplitPlan, plan_split
from dflash.model.weights import Weights


def gpu_plan(file: GGUFFile, config: Config, settings: LoadSettings) -> SplitPlan:
    """Plan a model over GPUs by their free memory now; loads nothing."""
    return plan_split(
        config,
        Weights(file, config).tensors,
        settings,
        names=[f"cuda:{number}" for number in settings.gpus],
        free=[free_memory_of(number) for number in settings.gpus],
        work=lambda sizes: work_bytes(sizes, settings.kv) + RESERVE,
    )


def load_on_gpus(
    file: GGUFFile, config: Config, settings: LoadSettings, *, threads: int, tell: Callable[[str], None]
) -> SplitDeviceModel:
    """Put a model on several GPUs; arguments and errors as for `gpu_plan` and `load_on_gpu`."""
    tell("memory")
    plan = gpu_plan(file, config, settings)
    devices = Devices(settings.gpus, direct=settings.split_kind == "tensor")
    tell("weights")
    return SplitDeviceModel(file, config, plan, devices, slots=settings.sequences + 1, kv=settings.kv, threads=threads)
