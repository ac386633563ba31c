"""Responses that the server keeps for ``previous_response_id`` and for reading them again."""

import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from time import monotonic

from dflash.json_types import JsonMapping
from dflash.serve.limits import STORED_BYTES, STORED_SECONDS


@dataclass(slots=True)
class _Stored:
    user: str
    body: bytes
    items: bytes
    output: bytes
    previous: str | None
    used_at: float

    @property
    def n_bytes(self) -> int:
        return len(self.body) + len(self.items) + len(self.output)


def as_json(value: object) -> bytes:
    """Return a value as compact JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


class ResponseStore:
    """Finished responses by id, with the input items of their requests. May be used from several threads.

    A response exists only for its user, see `dflash.serve.access.check_key`.

    The least recently used response is dropped first. Using a response counts as a use of all responses before it, so that a
    conversation loses its end before its beginning.

    max_bytes: bytes of all responses. One that is longer is not stored.
    seconds: time after its last use for which a response is kept.
    """

    def __init__(
        self, max_bytes: int = STORED_BYTES, seconds: float = STORED_SECONDS, clock: Callable[[], float] = monotonic
    ) -> None:
        self._max_bytes, self._seconds, self._clock = max_bytes, seconds, clock
        self._lock = Lock()
        self._stored: OrderedDict[str, _Stored] = OrderedDict()
        self._n_bytes = 0

    def add(self, body: JsonMapping, items: bytes, previous: str | None, user: str = "") -> None:
        """Store a response."""
        stored = _Stored(user, as_json(body), items, as_json(body["output"]), previous, self._clock())
        if stored.n_bytes > self._max_bytes:
            return
        with self._lock:
            self._stored[body["id"]] = stored
            self._n_bytes += stored.n_bytes
            self._use(body["id"], user)
            while self._n_bytes > self._max_bytes:
                self._drop(next(iter(self._stored)))

    def conversation(self, id_: str, user: str = "") -> bytes | None:
        """Return the items of a response and of all before it, input and output, as a JSON array.

        None if any of them is not stored. The caller checks the size before parsing: each turn adds to it.
        """
        with self._lock:
            used = self._use(id_, user)
        if used is None:
            return None
        parts = (part[1:-1] for stored in reversed(used) for part in (stored.items, stored.output))
        return b"[" + b",".join(filter(None, parts)) + b"]"

    def body(self, id_: str, user: str = "") -> bytes | None:
        """Return a response as JSON; None if it is not stored."""
        with self._lock:
            self._use(id_, user)
            stored = self._of(id_, user)
        return None if stored is None else stored.body

    def items(self, id_: str, user: str = "") -> bytes | None:
        """Return the input items of a response's request as a JSON array; None if the response is not stored."""
        with self._lock:
            self._use(id_, user)
            stored = self._of(id_, user)
        return None if stored is None else stored.items

    def delete(self, id_: str, user: str = "") -> bool:
        """Drop a response; False if it was not stored."""
        with self._lock:
            self._drop_old()
            return self._of(id_, user) is not None and self._drop(id_)

    def _of(self, id_: str, user: str) -> _Stored | None:
        stored = self._stored.get(id_)
        return stored if stored is not None and stored.user == user else None

    def _use(self, id_: str, user: str) -> list[_Stored] | None:
        """Mark a response and all before it as used just now; return them, None if any of them is not stored."""
        self._drop_old()
        used: list[_Stored] = []
        next_id: str | None = id_
        while next_id is not None:
            stored = self._of(next_id, user)
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
