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
    if not settings.prefix_cache:
        return None
    free = device.free_memory() if loaded.model.device == "cuda" else free_memory()
    capacity = free // 8 if settings.prefix_cache is True else settings.prefix_cache
    folder, exact, disk = settings.prefix_cache_folder, settings.prefix_cache_exact, None
    if folder is not None:
        disk_capacity = DEFAULT_CAPACITY if settings.prefix_cache_disk is None else settings.prefix_cache_disk
        disk = DiskTier(Path(folder).expanduser().absolute(), disk_capacity, identity_of(loaded, exact=exact))
    page_bytes = loaded.model.pools.page_bytes
    return PrefixCache(capacity, page_bytes, disk=disk, exact=exact, reread=settings.prefix_cache_reread)
