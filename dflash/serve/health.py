"""What the server says about its engine."""

from typing import Any

from dflash.generation.engine_thread import Worker

MAX_STEP_AGE = 300.0
"""Seconds that a step may take before the engine counts as stalled.

A chunk of a prompt takes seconds on a slow, busy CPU, and the first use of a strategy loads or compiles for up to a minute
or two between two steps; five minutes are beyond both.
"""

MAX_CLOSING = 30.0
"""Seconds that a shutdown waits for the forward that runs; a forward takes seconds, one that hangs must not keep it."""


def health_of(worker: Worker) -> tuple[int, dict[str, Any]]:
    """Return the HTTP status and the body of an answer about a worker's health.

    Parameters
    ----------
    worker : Worker

    Returns
    -------
    int
        200 while work is taken and done, else 503.
    dict
        ``status`` is ``"ok"``, ``"stalled"`` (a step takes longer than `MAX_STEP_AGE`), ``"failed"`` or ``"closed"``;
        ``active`` and ``waiting`` count texts; ``step_age`` is the age of the last step in seconds, None while there is no
        work.
    """
    age = worker.step_age
    if worker.error is not None:
        status = "failed"
    elif not worker.alive:
        status = "closed"
    else:
        status = "stalled" if age is not None and age > MAX_STEP_AGE else "ok"
    engine = worker.engine
    body: dict[str, Any] = {"status": status, "active": engine.active, "waiting": engine.waiting}
    body["step_age"] = None if age is None else round(age, 3)
    if status == "failed":
        body["error"] = "the engine has failed and takes no more work; the server's log says why"
    return 200 if status == "ok" else 503, body
