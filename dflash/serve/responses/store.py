"""Responses that the server keeps for ``previous_response_id`` and for reading them again."""

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock
from time import monotonic
from typing import Any

from dflash.serve.limits import STORED_BYTES, STORED_SECONDS


@dataclass(slots=True)
class _Stored:
    body: bytes
    items: bytes
    previous: str | None
    used_at: float

    @property
    def n_bytes(self) -> int:
        return len(self.body) + len(self.items)


def as_json(value: Any) -> bytes:
    """Return a value as compact JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


class ResponseStore:
    """Finished responses by id, with the input items of their requests. May be used from several threads.

    The least recently used response is dropped first. Using a response counts as a use of all responses before it, so that a
    conversation loses its end before its beginning.

    Parameters
    ----------
    max_bytes : int
        Bytes of all responses. One that is longer is not stored.
    seconds : float
        Time after its last use for which a response is kept.
    clock : callable
        Returns the time in seconds.
    """

    def __init__(
        self, max_bytes: int = STORED_BYTES, seconds: float = STORED_SECONDS, clock: Callable[[], float] = monotonic
    ) -> None:
        self._max_bytes, self._seconds, self._clock = max_bytes, seconds, clock
        self._lock = Lock()
        self._stored: OrderedDict[str, _Stored] = OrderedDict()
        self._n_bytes = 0

    def add(self, body: Mapping[str, Any], items: bytes, previous: str | None) -> None:
        """Store a response.

        Parameters
        ----------
        body : mapping
            The response; it has an ``id`` and an ``output``.
        items : bytes
            Input items of its request as JSON, without those of responses before it.
        previous : str or None
            Id of the response that it continues.
        """
        stored = _Stored(as_json(body), items, previous, self._clock())
        if stored.n_bytes > self._max_bytes:
            return
        with self._lock:
            self._stored[body["id"]] = stored
            self._n_bytes += stored.n_bytes
            self._use(body["id"])
            while self._n_bytes > self._max_bytes:
                self._drop(next(iter(self._stored)))

    def conversation(self, id_: str) -> list[Any] | None:
        """Return the items of a response and of all before it, input and output; None if any of them is not stored."""
        with self._lock:
            used = self._use(id_)
        if used is None:
            return None
        turns = ((json.loads(stored.items), json.loads(stored.body)["output"]) for stored in reversed(used))
        return [item for turn in turns for part in turn for item in part]

    def body(self, id_: str) -> dict[str, Any] | None:
        """Return a response; None if it is not stored."""
        with self._lock:
            self._use(id_)
            stored = self._stored.get(id_)
        return None if stored is None else json.loads(stored.body)

    def delete(self, id_: str) -> bool:
        """Drop a response; False if it was not stored."""
        with self._lock:
            self._drop_old()
            return self._drop(id_)

    def _use(self, id_: str) -> list[_Stored] | None:
        """Mark a response and all before it as used just now; return them, None if any of them is not stored."""
        self._drop_old()
        used: list[_Stored] = []
        next_id: str | None = id_
        while next_id is not None:
            stored = self._stored.get(next_id)
            if stored is None:
                return None
            stored.used_at = self._clock()
            self._stored.move_to_end(next_id)
            used.append(stored)
            next_id = stored.previous
        return used

    def _drop_old(self) -> None:
        oldest = self._clock() - self._seconds
        while self._stored and next(iter(self._stored.values())).used_at < oldest:
            self._drop(next(iter(self._stored)))

    def _drop(self, id_: str) -> bool:
        stored = self._stored.pop(id_, None)
        self._n_bytes -= 0 if stored is None else stored.n_bytes
        return stored is not None
