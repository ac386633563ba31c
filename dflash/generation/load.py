"""Load a model and start its engine thread."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from dflash.decode.engine import Engine
from dflash.decode.prefix_cache import PrefixCache
from dflash.decode.prefix_cache.disk import DEFAULT_CAPACITY, DiskTier
from dflash.decode.prefix_cache.disk.identity import identity_of
from dflash.decode.warmup import warm
from dflash.decode.warmup.compile_ahead import CompileAhead
from dflash.errors import RequestError
from dflash.generation.engine_thread import EngineThread
from dflash.generation.grammar.guidance import GuidanceVocabulary
from dflash.kernels.gpu import device
from dflash.model.loading.free_memory import free_memory
from dflash.model.loading.settings import LoadSettings
from dflash.model.loading.target import Loaded, load_model
from dflash.model.model import Model
from dflash.model.text.tokenizer import Tokenizer

MAX_STEP_MS = {"cuda": 265.0, "cpu": 400.0}
"""Default limit of a step in milliseconds, by device. Readers hardly notice such a gap between two tokens. On a simulated
H200 99 % of the gaps are at most 244 ms with 265, 252 ms with 275, which reads 0.2 to 0.4 % more tokens a second."""


def start(
    name: str | os.PathLike[str], settings: LoadSettings, *, progress: Callable[[str], None] | None = None
) -> tuple[Loaded, EngineThread]:
    """Load a model, warm it up and start its engine thread."""
    folder = settings.prefix_cache_folder
    if folder is not None and Path(folder).is_file():
        raise RequestError(f"prefix_cache_folder: {os.fspath(folder)} is a file, must be a folder")
    with ExitStack() as stack:
        ahead = stack.enter_context(CompileAhead())
        loaded = load_model(
            name,
            settings,
            progress=progress,
            with_tokenizer=partial(_start_check, stack) if settings.isolate else None,
            before_kernels=ahead.begin,
        )
        with device.on(loaded.gpu):
            max_step_ms = MAX_STEP_MS[loaded.model.device] if settings.max_step_ms is True else settings.max_step_ms
            engine = Engine(
                loaded.model,
                chunk=loaded.model.prefill_chunk,
                max_active=loaded.sequences,
                max_waiting=settings.max_waiting,
                max_step=max_step_ms / 1e3 or None,
                prefix_cache=_prefix_cache(loaded, settings),
                max_swap=_max_swap(loaded, settings.swap_bytes),
                draft_budget=settings.draft_budget,
            )
            if isinstance(loaded.model, Model):
                loaded.model.compiled = ahead.finished
            warm(engine, loaded.kind, progress or (lambda _: None))
        return loaded, EngineThread(engine, at_end=stack.pop_all().close, gpu=loaded.gpu)


def _start_check(stack: ExitStack, tokenizer: Tokenizer) -> None:
    """Start the process that compiles grammars first, beside the loading of the weights."""
    checker = GuidanceVocabulary.of(tokenizer).isolate()
    if checker is not None:
        stack.callback(checker.close)


def _max_swap(loaded: Loaded, swap_bytes: int | None) -> int:
    """Return the most KV pages of preempted sequences."""
    pools = loaded.model.pools
    if swap_bytes is None:
        swap_bytes = max(pools.pages * pools.page_bytes, free_memory() // 2 if loaded.model.device == "cuda" else 0)
    return swap_bytes // max(pools.page_bytes, 1)


def _prefix_cache(loaded: Loaded, settings: LoadSettings) -> PrefixCache | None:
    """Make the prefix cache, by default as large as costs nobody else.

    On a GPU the KV pages are allocated at the start, so all that no sequence needs may hold states. Copies of states may
    take half of the memory that is left: requests may name drafts. On a CPU a page costs memory from its first use on;
    pages and copies together get an eighth of the free memory.
    """
    if not settings.prefix_cache:
        return None
    pools, on_gpu = loaded.model.pools, loaded.model.device == "cuda"
    max_copied = device.free_memory() // 2 if on_gpu else free_memory() // 8
    capacity = max_copied + on_gpu * pools.pages * pools.page_bytes
    if settings.prefix_cache is not True:
        capacity = max_copied = settings.prefix_cache
    exact, reread, disk = settings.prefix_cache_exact, settings.prefix_cache_reread, None
    if (folder := settings.prefix_cache_folder) is not None:
        disk_capacity = DEFAULT_CAPACITY if settings.prefix_cache_disk is None else settings.prefix_cache_disk
        disk = DiskTier(Path(folder).expanduser().absolute(), disk_capacity, identity_of(loaded, exact=exact))
    return PrefixCache(capacity, pools.page_bytes, max_copied=max_copied, disk=disk, exact=exact, reread=reread)
