"""Health of the engine, for ``/health``."""

from dflash.generation.engine_thread import EngineThread
from dflash.json_types import JsonObject

MAX_STEP_AGE = 300.0
"""Seconds after which a step counts as stalled.

A prompt chunk takes seconds on a slow, busy CPU. The first use of a strategy may load and compile for one or two minutes
between two steps. Five minutes exceed both.
"""

MAX_CLOSING = 30.0
"""Seconds that a shutdown waits for the running forward. A forward takes seconds; one that hangs must not block the exit."""


def health_of(engine_thread: EngineThread) -> tuple[int, JsonObject]:
    """Return the HTTP status and the body of a response about the engine's health.

    Returns: ``status`` is ``"ok"``, ``"stalled"`` (a step takes longer than `MAX_STEP_AGE`), ``"failed"`` or ``"closed"``;
        ``active`` and ``waiting`` count sequences. ``step_age`` is the time since the last step in seconds, None while the
        engine is idle.
    """
    age = engine_thread.step_age
    if engine_thread.error is not None:
        status = "failed"
    elif not engine_thread.alive:
        status = "closed"
    else:
        status = "stalled" if age is not None and age > MAX_STEP_AGE else "ok"
    engine = engine_thread.engine
    body: JsonObject = {"status": status, "active": engine.active, "waiting": engine.waiting}
    body["step_age"] = None if age is None else round(age, 3)
    if status == "failed":
        body["error"] = "the engine has failed and accepts no more requests; see the server's log"
    return 200 if status == "ok" else 503, body
