"""Divide the memory of a GPU among weights, KV pages and scratch, and load the model into it."""

from bisect import bisect
from collections.abc import Callable
from dataclasses import replace

from dflash.errors import OutOfMemory, Unsupported
from dflash.kernels.gpu import device
from dflash.kernels.gpu.capabilities import capabilities
from dflash.kernels.moe import cuda_prefill
from dflash.model.config import Config
from dflash.model.cuda.model import CHUNK, DeviceModel
from dflash.model.cuda.ops import scratch_bytes
from dflash.model.cuda.passes import PROMPTS, rows_of
from dflash.model.cuda.workspace import workspace_bytes
from dflash.model.gguf.file import GGUFFile
from dflash.model.loading.settings import LoadSettings
from dflash.model.state.budget import Need, kept_unpacked, n_pages, unpacked_size
from dflash.model.weights import Weights

RESERVE = 3 << 28
"""Bytes of device memory left free (768 MiB): for code of kernels, their graphs, snapshots and other processes."""

LARGE_CHUNKS, EXPERTS_CHUNKS = (2 * CHUNK,), (4 * CHUNK, 2 * CHUNK)
"""Prompt tokens in one prefill forward where memory is plentiful, of dense models and of those with experts: each expert has
then enough tokens to fill its tiles."""

_FEWER_PENDING = 16, 8, 1
"""Pending rows that an error suggests: for a chain of 15 draft tokens, for one of 7, and for plain decoding."""

_PENDING_SHARE = 4
"""Bytes beside the weights for each byte of pending rows, if their number is not given: the KV cache needs the rest."""

GATHERED_ROWS = 16
"""Rows of a sequence whose outputs are gathered from several passes of a forward, the logits too; drafts may have more."""

WIDE_BYTES = 1 << 19
"""Bytes a row for partial sums and arranged tokens of multiplies with one read of the weights (0.4 MB for the 27B)."""


def load_on_gpu(
    file: GGUFFile, config: Config, settings: LoadSettings, *, threads: int, tell: Callable[[str], None]
) -> DeviceModel:
    """Put a model on the current GPU.

    settings: if `pending` is None, sequences may have fewer pending rows than ``config.pending``, for a chain of 7 draft
        tokens at least, so that these take no more than a quarter of the memory beside the weights.
    """
    tell("memory")
    if config.prefill != "f16" and not capabilities().has_wgmma:
        raise Unsupported(f"prefill {config.prefill!r}: needs a Hopper GPU, such as an H100")
    free = device.free_memory()
    weights = weight_bytes(file, config)
    kv, sequences = settings.kv, settings.sequences
    if settings.pending is None:
        config = replace(config, pending=_pending_for(config, kv, sequences, free - weights))
    chunk = chunk_for(config, kv, free - weights)
    work = work_bytes(config, kv, sequences, chunk) + RESERVE
    need = Need.of(config, kv)
    texts = (sequences + 1) * (need.state + need.pending)
    room = free - weights - work - texts
    if room < need.page + need.unpacked:
        advice = _advice(config, kv, sequences, chunk, free - weights)
        raise OutOfMemory(
            f"{file.path.name}: its weights take {weights >> 20} MiB, {sequences} sequences {texts >> 20} MiB, the work on "
            f"them {work >> 20} MiB; the GPU has {free >> 20} MiB free; {advice}"
        )
    size = unpacked_size(config, Weights(file, config).tensors)
    unpacked = kept_unpacked(config, settings, size, room, need.page + need.unpacked)
    pages, fits = n_pages(config, settings, room - unpacked)
    tell("weights")
    config = replace(config, context=fits)
    memory = {"pages": pages, "slots": sequences + 1, "chunk": chunk, "unpacked_bytes": unpacked}
    return DeviceModel(file, config, kv=kv, threads=threads, **memory)


def _pending_for(config: Config, kv: str, sequences: int, room: int) -> int:
    """Return the most pending rows that a load without a given number has in `room` bytes beside the weights."""
    choices = [config.pending, *(n for n in _FEWER_PENDING if 1 < n < config.pending)]
    fitting = (n for n in choices if _PENDING_SHARE * sequences * Need.of(replace(config, pending=n), kv).pending <= room)
    return next(fitting, choices[-1])


def _advice(config: Config, kv: str, sequences: int, chunk: int, room: int) -> str:
    """Return how many sequences fit `room` bytes, also with fewer pending rows, and which settings to change."""
    choices = dict.fromkeys(n for n in (config.pending, *_FEWER_PENDING) if n <= config.pending)
    found = {n: _most_sequences(replace(config, pending=n), kv, sequences, chunk, room) for n in choices}
    if not any(found.values()):
        return "no sequence fits beside them, with any number of pending rows"
    return f"set sequences or pending: {', '.join(f'{n} sequences fit with pending={rows}' for rows, n in found.items())}"


def _most_sequences(config: Config, kv: str, sequences: int, chunk: int, room: int) -> int:
    """Return how many sequences, of at most `sequences`, fit `room` bytes with their work and a page."""
    need = Need.of(config, kv)

    def is_too_many(n: int) -> bool:
        texts = (n + 1) * (need.state + need.pending)
        return work_bytes(config, kv, n, chunk) + RESERVE + texts + need.page + need.unpacked > room

    return bisect(range(1, sequences + 1), False, key=is_too_many)


def chunk_for(config: Config, kv: str, room: int) -> int:
    """Return the most prompt tokens of a forward: more than `CHUNK` if that takes at most a 32nd of `room` bytes more."""

    def is_small(chunk: int) -> bool:
        return 32 * (work_bytes(config, kv, chunk=chunk) - work_bytes(config, kv)) <= room

    return next(filter(is_small, EXPERTS_CHUNKS if config.experts else LARGE_CHUNKS), CHUNK)


def work_bytes(config: Config, kv: str, sequences: int = 1, chunk: int = CHUNK) -> int:
    """Return the bytes of device memory that passes take, prefill passes with up to `chunk` rows.

    Logits and partial sums of attention lie in the memory of prefill passes and are not counted, but those that are gathered
    from several passes.
    """
    rows = rows_of(config, sequences)
    passes = sum(workspace_bytes(config, n, kv) for n in (chunk, rows))
    inner, slots = max(config.expert_ffn, config.shared_ffn), config.experts_used + (config.shared_ffn > 0)
    experts = cuda_prefill.scratch_bytes(chunk, config.width, inner, slots) if config.experts else 0
    gathered = 4 * (config.width * chunk + (config.width + config.n_vocab) * GATHERED_ROWS * sequences)
    return passes + experts + scratch_bytes(config, chunk, PROMPTS) + WIDE_BYTES * rows + gathered


def weight_bytes(file: GGUFFile, config: Config) -> int:
    """Return the bytes of device memory that the weights of a file take, without the padding of their last tiles."""
    return sum(tensor.device_bytes for tensor in Weights(file, config).tensors)
