"""Divide the memory of a GPU among weights, KV pages and scratch, and load the model into it."""

from collections.abc import Callable
from dataclasses import replace

from dflash.errors import OutOfMemory
from dflash.kernels.gpu import device
from dflash.model.config import Config
from dflash.model.cuda.model import CHUNK, DeviceModel
from dflash.model.cuda.ops import scratch_bytes
from dflash.model.cuda.passes import PROMPTS, rows_of
from dflash.model.cuda.workspace import workspace_bytes
from dflash.model.gguf.file import GGUFFile
from dflash.model.state.budget import Need, n_pages
from dflash.model.weights import Weights

RESERVE = 3 << 28
"""Bytes of device memory left free (768 MiB): for code of kernels, their graphs, snapshots and other processes."""

WIDE_BYTES = 1 << 19
"""Bytes a row for partial sums and arranged tokens of multiplies with one read of the weights (0.4 MB for the 27B)."""


def load_on_gpu(
    file: GGUFFile,
    config: Config,
    *,
    context: int | None,
    sequences: int,
    kv: str,
    threads: int,
    tell: Callable[[str], None],
    kv_bytes: int | None = None,
) -> DeviceModel:
    """Put a model on the current GPU.

    Parameters
    ----------
    file, config, context, sequences, kv, threads, kv_bytes
        See `dflash.model.loading.target.load_model`.
    tell : callable
        Called with the name of each phase before it begins.

    Raises
    ------
    OutOfMemory
        If the weights, the scratch memory or the recurrent state of all sequences do not fit.
    RequestError
        If the context does not fit.
    """
    tell("memory")
    free = device.free_memory()
    weights = weight_bytes(file, config)
    work = work_bytes(config, kv, sequences) + RESERVE
    need = Need.of(config, kv)
    texts = (sequences + 1) * (need.state + need.pending)
    room = free - weights - work - texts
    if room < need.page + need.unpacked:
        raise OutOfMemory(
            f"{file.path.name}: its weights take {weights >> 20} MiB, {sequences} sequences {texts >> 20} MiB, the work on "
            f"them {work >> 20} MiB; the GPU has {free >> 20} MiB free"
        )
    pages, fits = n_pages(config, context=context, sequences=sequences, kv=kv, room=room, kv_bytes=kv_bytes)
    tell("weights")
    config = replace(config, context=fits)
    return DeviceModel(file, config, pages=pages, slots=sequences + 1, kv=kv, threads=threads)


def work_bytes(config: Config, kv: str, sequences: int = 1) -> int:
    """Return the bytes of device memory that passes take, without experts.

    Logits and partial sums of attention lie in the memory of prefill passes and are not counted.
    """
    rows = rows_of(config, sequences)
    passes = sum(workspace_bytes(config, n, kv) for n in (CHUNK, rows))
    return passes + scratch_bytes(config, CHUNK, PROMPTS) + WIDE_BYTES * rows


def weight_bytes(file: GGUFFile, config: Config) -> int:
    """Return the bytes of device memory that the weights of a file take, without the padding of their last tiles."""
    return sum(tensor.device_bytes for tensor in Weights(file, config).tensors)
