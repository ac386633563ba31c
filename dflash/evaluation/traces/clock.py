"""Time of a run, and waits in it."""

import threading
from time import perf_counter


class RunClock:
    """Seconds since a run began. Waits end early once the run is over.

    seconds: duration of the run; infinity if it ends with its work.
    """

    def __init__(self, seconds: float = float("inf")) -> None:
        self._seconds, self._began = seconds, perf_counter()
        self._stopped = threading.Event()

    def now(self) -> float:
        """Return the seconds since the run began."""
        return perf_counter() - self._began

    @property
    def is_over(self) -> bool:
        """True if no further request is to begin."""
        return self._stopped.is_set() or self.now() >= self._seconds

    def sleep(self, seconds: float) -> None:
        """Wait, at most until the run is over."""
        self._stopped.wait(max(min(seconds, self._seconds - self.now()), 0.0))

    def stop(self) -> None:
        """End the run; wakes those that wait."""
        self._stopped.set()
