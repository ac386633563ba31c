"""Load a model and start its engine thread."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dflash.decode.engine import Engine
from dflash.decode.prefix_cache import PrefixCache
from dflash.decode.warmup import warm
from dflash.generation.engine_thread import EngineThread
from dflash.kernels.gpu import device
from dflash.model.loading.free_memory import free_memory
from dflash.model.loading.target import Loaded, load_model

if TYPE_CHECKING:
    from dflash.model.cuda.model import DeviceModel
    from dflash.model.model import Model


def start(
    name: str | os.PathLike[str],
    *,
    progress: Callable[[str], None] | None = None,
    max_waiting: int | None = None,
    prefix_cache: bool | int = False,
    **settings: Any,
) -> tuple[Loaded, EngineThread]:
    """Load a model, warm it up and start its engine thread.

    Parameters
    ----------
    name : str or path
        Path, ``demo``, or ``hf:org/repo:quant``.
    progress : callable, optional
        Called with the name of each stage before it starts.
    max_waiting : int, optional
        Maximum sequences that wait to start; None is unlimited.
    prefix_cache : bool or int
        Maximum bytes of the prefix cache; True is an eighth of the free memory of the model's device, False and 0 are none.
    **settings
        Keyword arguments of `load_model`.

    Returns
    -------
    Loaded, EngineThread

    Raises
    ------
    DFlashError
        As for `load_model`.
    """
    loaded = load_model(name, progress=progress, **settings)
    engine = Engine(
        loaded.model,
        chunk=loaded.model.prefill_chunk,
        max_active=loaded.sequences,
        max_waiting=max_waiting,
        prefix_cache=_prefix_cache(loaded.model, prefix_cache),
    )
    warm(engine, loaded.kind, progress or (lambda _: None))
    return loaded, EngineThread(engine)


def _prefix_cache(model: "Model | DeviceModel", wanted: bool | int) -> PrefixCache | None:
    if not wanted:
        return None
    free = device.free_memory() if model.device == "cuda" else free_memory()
    return PrefixCache(free // 8 if wanted is True else wanted, model.pools.page_bytes)
