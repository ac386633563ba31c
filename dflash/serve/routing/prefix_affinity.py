"""Routing of requests to the replica whose prefix cache holds most of their prompt."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from math import inf

from dflash.errors import RequestError
from dflash.serve.routing.hints import RouteHints


class PrefixAffinity:
    """Chooses replicas for requests, and remembers which prompts each replica has prefilled.

    The first of these rules that applies gives the order of the replicas:

    1. Load differs by more than `balance_absolute` requests and by the factor `balance_ratio`: the least loaded replica.
    2. A replica has prefilled at least `min_share` of the prompt: the one with the longest shared prefix. Of several, the
       one that the session used last, else the least loaded.
    3. The session is known: the replica that it used last.
    4. The least loaded replica; of several, the one with the fewest remembered blocks.

    min_share: smallest share of the prompt, 0 to 1, for which a shared prefix decides.
    balance_absolute: requests by which the most and the least loaded replica may differ.
    balance_ratio: factor by which they may differ.
    max_blocks: blocks remembered for each replica, about as many as its prefix cache holds. The least recently used go
        first.
    max_sessions: sessions remembered. The least recently used go first.
    Raises RequestError if a parameter is out of range.

    A prompt is a sequence of blocks, each of which identifies the prompt up to its end (see `blocks_of`). A decision takes
    time proportional to the number of its blocks and does not depend on the number of remembered ones.

    The rule and its defaults are those of SGLang's router (Zheng et al. 2024, arXiv 2312.07104), with sessions added.
    """

    def __init__(
        self,
        *,
        min_share: float = 0.3,
        balance_absolute: float = 64,
        balance_ratio: float = 1.5,
        max_blocks: int = 8192,
        max_sessions: int = 65536,
    ) -> None:
        _check("min_share", min_share, 0, 1)
        _check("balance_absolute", balance_absolute, 0)
        _check("balance_ratio", balance_ratio, 1)
        _check("max_blocks", max_blocks, 1)
        _check("max_sessions", max_sessions, 1)
        self.min_share, self.balance_absolute, self.balance_ratio = min_share, balance_absolute, balance_ratio
        self.max_blocks, self.max_sessions = max_blocks, max_sessions
        self._holders: dict[int, set[str]] = {}
        self._blocks: dict[str, OrderedDict[int, None]] = {}
        self._sessions: OrderedDict[str, str] = OrderedDict()

    def rank(self, hints: RouteHints, loads: Mapping[str, float]) -> list[str]:
        """Return all replicas, the best one first. Changes nothing."""
        by_load = sorted(loads, key=lambda replica: (loads[replica], len(self._blocks.get(replica, ()))))
        if len(by_load) < 2 or self._is_unbalanced(loads.values()):
            return by_load
        home = self._sessions.get(hints.session) if hints.session else None
        home = home if home in loads else None
        n_shared, longest = self._longest(hints.blocks, loads)
        first = None
        if n_shared and n_shared / len(hints.blocks) * hints.coverage >= self.min_share:
            first = home if home in longest else next(replica for replica in by_load if replica in longest)
        first = first or home
        return by_load if first is None else [first, *(replica for replica in by_load if replica != first)]

    def note(self, hints: RouteHints, replica: str) -> None:
        """Remember that a replica gets a request. Called for each request that was sent to a replica."""
        if hints.session:
            self._sessions[hints.session] = replica
            self._sessions.move_to_end(hints.session)
        while len(self._sessions) > self.max_sessions:
            self._sessions.popitem(last=False)
        held = self._blocks.setdefault(replica, OrderedDict())
        for block in reversed(hints.blocks):  # the beginning last: the oldest blocks, which go first, are ends of prompts
            held[block] = None
            held.move_to_end(block)
            self._holders.setdefault(block, set()).add(replica)
        while len(held) > self.max_blocks:
            self._release(held.popitem(last=False)[0], replica)

    def forget(self, replica: str) -> None:
        """Drop what is remembered about a replica that has ended."""
        for block in self._blocks.pop(replica, ()):
            self._release(block, replica)
        for name in [name for name, home in self._sessions.items() if home == replica]:
            del self._sessions[name]

    @property
    def n_blocks(self) -> dict[str, int]:
        """Remembered blocks by replica."""
        return {replica: len(held) for replica, held in self._blocks.items()}

    def _is_unbalanced(self, loads: Iterable[float]) -> bool:
        least, most = min(loads), max(loads)
        return most - least > self.balance_absolute and most > self.balance_ratio * least

    def _longest(self, blocks: Sequence[int], loads: Mapping[str, float]) -> tuple[int, set[str]]:
        """Return the length of the longest shared prefix in blocks, and the replicas that hold it."""
        longest: set[str] = set()
        holding = set(loads)
        for n_shared, block in enumerate(blocks):
            holding = holding & self._holders.get(block, set())
            if not holding:
                return n_shared, longest
            longest = holding
        return len(blocks), longest

    def _release(self, block: int, replica: str) -> None:
        holders = self._holders[block]
        holders.discard(replica)
        if not holders:
            del self._holders[block]


def _check(name: str, value: float, least: float, most: float = inf) -> None:
    if not least <= value <= most:
        bound = f"at least {least:g}" if most == inf else f"{least:g} to {most:g}"
        raise RequestError(f"{name}: must be {bound}, got {value:g}")
