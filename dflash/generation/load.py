"""Load a model and start its engine thread."""

import os
from collections.abc import Callable
from typing import Any

from dflash.decode.engine import Engine
from dflash.decode.warmup import warm
from dflash.generation.engine_thread import EngineThread
from dflash.model.loading.target import Loaded, load_model


def start(
    name: str | os.PathLike[str],
    *,
    progress: Callable[[str], None] | None = None,
    max_waiting: int | None = None,
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
    engine = Engine(loaded.model, chunk=loaded.model.prefill_chunk, max_active=loaded.sequences, max_waiting=max_waiting)
    warm(engine, loaded.kind, progress or (lambda _: None))
    return loaded, EngineThread(engine)
