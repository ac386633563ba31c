"""Plan a model over several GPUs, and load it."""

from collections.abc import Callable, Sequence

from dflash.kernels.gpu.devices import Devices, free_memory_of
from dflash.model.config import Config
from dflash.model.cuda.load import RESERVE, work_bytes
from dflash.model.cuda.split.model import SplitDeviceModel
from dflash.model.gguf.file import GGUFFile
from dflash.model.split.plan import SplitPlan, plan_split
from dflash.model.weights import Weights


def gpu_plan(
    file: GGUFFile,
    config: Config,
    numbers: Sequence[int],
    kind: str,
    *,
    context: int | None,
    sequences: int,
    kv: str,
    kv_bytes: int | None = None,
) -> SplitPlan:
    """Plan a model over GPUs by their free memory now; loads nothing.

    file, config, context, sequences, kv, kv_bytes: see `dflash.model.loading.target.load_model`.
    numbers: CUDA device numbers.
    kind: ``"tensor"`` or ``"layer"``.
    Raises Unsupported if there is no such GPU, or a tensor split does not divide the model.
    Raises OutOfMemory, RequestError: see `dflash.model.split.plan.plan_split`.
    """
    free = [free_memory_of(number) for number in numbers]
    return plan_split(
        config,
        Weights(file, config).tensors,
        kind=kind,
        names=[f"cuda:{number}" for number in numbers],
        free=free,
        work=lambda sizes: work_bytes(sizes, kv) + RESERVE,
        context=context,
        sequences=sequences,
        kv=kv,
        kv_bytes=kv_bytes,
    )


def load_on_gpus(
    file: GGUFFile,
    config: Config,
    numbers: Sequence[int],
    kind: str,
    *,
    context: int | None,
    sequences: int,
    kv: str,
    threads: int,
    tell: Callable[[str], None],
    kv_bytes: int | None = None,
) -> SplitDeviceModel:
    """Put a model on several GPUs; arguments and errors as for `gpu_plan` and `load_on_gpu`."""
    tell("memory")
    plan = gpu_plan(file, config, numbers, kind, context=context, sequences=sequences, kv=kv, kv_bytes=kv_bytes)
    devices = Devices(numbers, direct=kind == "tensor")
    tell("weights")
    return SplitDeviceModel(file, config, plan, devices, slots=sequences + 1, kv=kv, threads=threads)
