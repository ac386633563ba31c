"""Load a model and start its engine thread."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from dflash.decode.engine import Engine
from dflash.decode.prefix_cache import PrefixCache
from dflash.decode.prefix_cache.disk import DEFAULT_CAPACITY, DiskTier
from dflash.decode.prefix_cache.disk.identity import identity_of
from dflash.decode.warmup import warm
from dflash.decode.warmup.compile_ahead import compile_ahead
from dflash.errors import RequestError
from dflash.generation.engine_thread import EngineThread
from dflash.generation.grammar.guidance import GuidanceVocabulary
from dflash.kernels.gpu import device
from dflash.model.loading.free_memory import free_memory
from dflash.model.loading.target import Loaded, load_model
from dflash.model.text.tokenizer import Tokenizer

MAX_STEP_MS = {"cuda": 280.0, "cpu": 400.0}
"""Default limit of a step in milliseconds, by device. Readers hardly notice such a gap between two tokens."""


def start(
    name: str | os.PathLike[str],
    *,
    progress: Callable[[str], None] | None = None,
    max_waiting: int | None = None,
    max_step_ms: bool | float = False,
    draft_budget: bool = False,
    prefix_cache: bool | int = False,
    prefix_cache_folder: str | os.PathLike[str] | None = None,
    prefix_cache_disk: int | None = None,
    prefix_cache_exact: bool = True,
    prefix_cache_reread: bool = False,
    swap_bytes: int | None = None,
    isolate: bool = True,
    **settings: Any,
) -> tuple[Loaded, EngineThread]:
    """Load a model, warm it up and start its engine thread; `dflash.load` explains the other parameters.

    progress: called with the name of each stage before it starts.
    max_waiting: maximum sequences that wait to start; None is unlimited.
    max_step_ms: most milliseconds of a step in which prompts delay sequences that decode; True is `MAX_STEP_MS` of the
        device, False is unlimited.
    draft_budget: draft fewer tokens where more would make answers slower; see `DraftBudget`.
    **settings: keyword arguments of `load_model`.
    Raises RequestError if `prefix_cache_folder` is a file or given without `prefix_cache`, or `prefix_cache_disk` without
        `prefix_cache_folder`; if `swap_bytes` is negative.
    Raises DFlashError as for `load_model`.
    """
    if prefix_cache_folder is not None and not prefix_cache:
        raise RequestError("prefix_cache_folder: needs a prefix cache; add prefix_cache=True or a number of bytes")
    if prefix_cache_folder is not None and Path(prefix_cache_folder).is_file():
        raise RequestError(f"prefix_cache_folder: {os.fspath(prefix_cache_folder)} is a file, must be a folder")
    if prefix_cache_disk is not None and prefix_cache_folder is None:
        raise RequestError("prefix_cache_disk: needs prefix_cache_folder, the folder of the files")
    if swap_bytes is not None and swap_bytes < 0:
        raise RequestError(f"swap_bytes is {swap_bytes}, must be at least 0")
    with ExitStack() as stack:
        start_check = partial(_start_check, stack) if isolate else None
        loaded = load_model(name, progress=progress, with_tokenizer=start_check, before_kernels=compile_ahead, **settings)
        with device.on(loaded.gpu):
            disk = _disk_tier(loaded, prefix_cache_folder, prefix_cache_disk, exact=prefix_cache_exact)
            cache = _prefix_cache(loaded, prefix_cache, disk=disk, exact=prefix_cache_exact, reread=prefix_cache_reread)
            engine = Engine(
                loaded.model,
                chunk=loaded.model.prefill_chunk,
                max_active=loaded.sequences,
                max_waiting=max_waiting,
                max_step=(MAX_STEP_MS[loaded.model.device] if max_step_ms is True else max_step_ms) / 1e3 or None,
                prefix_cache=cache,
                max_swap=_max_swap(loaded, swap_bytes),
                draft_budget=draft_budget,
            )
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


def _disk_tier(
    loaded: Loaded, folder: str | os.PathLike[str] | None, capacity: int | None, *, exact: bool
) -> DiskTier | None:
    if folder is None:
        return None
    capacity = DEFAULT_CAPACITY if capacity is None else capacity
    return DiskTier(Path(folder).expanduser().absolute(), capacity, identity_of(loaded, exact=exact))


def _prefix_cache(loaded: Loaded, wanted: bool | int, **settings: Any) -> PrefixCache | None:
    if not wanted:
        return None
    free = device.free_memory() if loaded.model.device == "cuda" else free_memory()
    return PrefixCache(free // 8 if wanted is True else wanted, loaded.model.pools.page_bytes, **settings)
