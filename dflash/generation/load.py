"""From a name to a worker that takes requests."""

import os
from collections.abc import Callable
from typing import Any

from dflash.decode.engine import Engine
from dflash.decode.warmup import warm
from dflash.generation.engine_thread import Worker
from dflash.model.load import Loaded, load_model


def start(
    name: str | os.PathLike[str],
    *,
    progress: Callable[[str], None] | None = None,
    max_waiting: int | None = None,
    **settings: Any,
) -> tuple[Loaded, Worker]:
    """Load a model, warm it up and give it a thread.

    Parameters
    ----------
    name : str or path
        A path, ``demo``, or ``hf:org/repo:quant``.
    progress : callable, optional
        Told what is about to be done.
    max_waiting : int, optional
        Most texts that wait to start; None is no bound.
    **settings
        As `load_model` takes them.

    Returns
    -------
    Loaded, Worker

    Raises
    ------
    DFlashError
        As `load_model` does.
    """
    loaded = load_model(name, progress=progress, **settings)
    engine = Engine(loaded.model, chunk=loaded.model.prefill_chunk, max_active=loaded.sequences, max_waiting=max_waiting)
    warm(engine, loaded.kind, progress or (lambda _: None))
    return loaded, Worker(engine)
