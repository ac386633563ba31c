"""Snapshots of sessions by their token ids, within a number of bytes."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import NamedTuple
from weakref import WeakSet

import numpy as np

from dflash.decode.drafting.drafter import Drafter, can_start_at
from dflash.decode.prefix_cache.disk import DiskTier, SavedState
from dflash.decode.prefix_cache.eviction import CacheEntry, victim
from dflash.decode.prefix_cache.radix_tree import Node, RadixTree
from dflash.decode.session import Session
from dflash.decode.snapshot import SessionSnapshot
from dflash.errors import FormatError, OutOfMemory, PoolExhausted, RequestError
from dflash.kernels.delta.state_copies import StateCopy
from dflash.kernels.ragged import PAGE
from dflash.model.protocols.target import TargetModel

MIN_GAIN = 16
"""Default for the fewest tokens between a boundary and the next one above it that is stored.

A forward over so few rows takes as long as one over a single row on a GPU, and 2 to 3 times as long on a CPU.
"""


class PrefixCacheStats(NamedTuple):
    """Counts since the cache was made, and its present size.

    n_bytes: bytes that they hold: KV pages, each counted once, recurrent states and states of drafters.
    queries, query_tokens: sessions that were looked up, and their prompt tokens.
    hits, hit_tokens: sessions that began with a snapshot, and the tokens that it held.
    drafter_misses, drafter_miss_tokens: sessions that began with a shorter snapshot or none, since the longest one lacks the
        state of their drafter; the tokens that they read again for it.
    aborts: snapshots discarded because their session ended without visible output.
    reread_hits: states of answers that were prefilled again with which a session began.
    reread_tokens, reread_seconds: tokens of answers that were prefilled again; the time of these steps, as far as it is
        theirs by the share of rows.
    """

    entries: int
    n_bytes: int
    capacity: int
    queries: int
    query_tokens: int
    hits: int
    hit_tokens: int
    drafter_misses: int
    drafter_miss_tokens: int
    evictions: int
    aborts: int
    reread_hits: int
    reread_tokens: int
    reread_seconds: float


class PrefixCache:
    """Radix tree of session snapshots: KV pages, recurrent and convolution state, and the drafter's state.

    A session begins with the longest snapshot from which its drafter drafts as it would without the cache
    (`Drafter.can_start_at`): otherwise measured acceptance would depend on who asked before.

    A session takes snapshots at its boundaries: where a role begins, at the end of its prompt, and when it ends. Until its
    first visible output they are reserved only; a session that fails before leaves the cache as it was. Where one is
    cancelled in its prompt, the state at that point is kept: a client that gave up waiting and asks again goes on there.
    A new session begins with the longest snapshot whose tokens its prompt starts with, and what follows is prefilled. Of a
    model without recurrent state, a snapshot that goes on differently is cut back to what the two share.
    Sessions of another `cache_salt` neither find a snapshot nor learn whether there is one.
    Snapshots share KV pages with each other and with sessions. Running sessions come first: if pages are short, snapshots
    are evicted. Used in the engine's thread only, except for `stats`.

    exact: use only snapshots from which the device computes the same bits as without the cache: on a GPU those taken in a
        prompt at a multiple of the model's `chunk_alignment`. On a CPU all of them are.
    min_gain: fewest tokens between a boundary and the next stored one above it.
    max_copied: most bytes of recurrent states and states of drafters, which are copies beside the KV pages; by default all.
    disk: saves evicted snapshots in files, from which later sessions, also of other processes, can begin.
    reread: the engine prefills answers again; see `dflash.decode.scheduling.reread.RereadQueue`.

    The structure follows RadixAttention (Zheng et al. 2024, arXiv:2312.07104), with snapshots at few boundaries as hybrid
    models need them: a recurrent state can't be cut back to an earlier token (Marconi, Pan et al. 2024, arXiv:2411.19379).
    """

    def __init__(
        self,
        capacity: int,
        page_bytes: int,
        *,
        exact: bool = True,
        min_gain: int = MIN_GAIN,
        disk: DiskTier | None = None,
        reread: bool = False,
        max_copied: int | None = None,
    ) -> None:
        if capacity < 0:
            raise RequestError(f"prefix_cache: a number of bytes of at least 0 is wanted, got {capacity}")
        self.capacity, self.exact, self.min_gain, self.reread = capacity, exact, min_gain, reread
        self._trees: defaultdict[str, RadixTree[CacheEntry]] = defaultdict(RadixTree)
        self._nodes: set[Node[CacheEntry]] = set()
        self._page_users: Counter[int] = Counter()
        self._reserved: dict[Session, list[SessionSnapshot]] = {}
        self._page_bytes = page_bytes
        self._n_copied, self._clock, self.max_copied = 0, 0, capacity if max_copied is None else max_copied
        self.reread_seconds = 0.0
        self._counts: Counter[str] = Counter()
        # requests and snapshots of each conversation that has snapshots
        self._turns: Counter[str] = Counter()
        self._n_of: Counter[str] = Counter()
        self.disk = disk
        self._disk_lookups: WeakSet[Session] = WeakSet()

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def stats(self) -> PrefixCacheStats:
        """Size and counts; may be read in any thread."""
        counts = {name: self._counts[name] for name in PrefixCacheStats._fields[3:-1]}
        n_bytes = self._n_copied + self._page_bytes * len(self._page_users)
        return PrefixCacheStats(len(self), n_bytes, self.capacity, **counts, reread_seconds=self.reread_seconds)

    @property
    def n_conversations(self) -> int:
        """Number of named conversations that have snapshots; may be read in any thread."""
        return len(self._n_of)

    def find(self, model: TargetModel, session: Session) -> SessionSnapshot | None:
        """Return the longest usable snapshot for a session's prompt, and plan where the session takes its own.

        session: is about to start. `count` follows once it has started.
        """
        alignment, ids = model.chunk_alignment, session.prompt_array[: session.n_prompt - 1]
        nodes, session.n_drafter_miss = self._usable_prefixes(model, session, ids)
        if self._cut(model, session, ids, nodes[-1].length if nodes else 0):
            nodes, session.n_drafter_miss = self._usable_prefixes(model, session, ids)
        if self.disk is not None and session not in self._disk_lookups:
            self._disk_lookups.add(session)  # a session that finds no memory looks for a snapshot again
            self._load(self.disk, model, session, nodes[-1].length if nodes else 0)
            nodes, session.n_drafter_miss = self._usable_prefixes(model, session, ids)
        session.n_cached = nodes[-1].length if nodes else 0
        session.snapshot_at = self._plan(session, alignment)
        if not nodes or nodes[-1].value is None:
            return None
        self._touch(nodes[-1], session.conversation)
        if nodes[-1].value.is_tentative and not session.is_reread:
            nodes[-1].value.is_tentative = False
            self._counts["reread_hits"] += 1
        session.continues = nodes[-1].value.snapshot.continued_by(session.prompt_array)
        if session.continues and not session.is_reread:
            for node in [node for node in nodes[-1].descendants() if node.value and node.value.is_tentative]:
                self._remove(node)  # the answer came back changed
        return nodes[-1].value.snapshot

    def count(self, session: Session) -> None:
        """Count a session that has started after `find`."""
        if session.is_reread:
            return
        self._counts.update(
            queries=1,
            query_tokens=session.n_prompt,
            hits=session.n_cached > 0,
            hit_tokens=session.n_cached,
            drafter_misses=session.n_drafter_miss > 0,
            drafter_miss_tokens=session.n_drafter_miss,
        )
        if session.conversation is not None and self._n_of[session.conversation]:
            self._turns[session.conversation] += 1

    def count_reread(self, n: int, seconds: float) -> None:
        """Count `n` tokens of an answer that were prefilled again, in `seconds`."""
        self._counts["reread_tokens"] += n
        self.reread_seconds += seconds

    def evict_oldest(self, spared: object = None) -> bool:
        """Evict the snapshot that is least likely to be used again; see `dflash.decode.prefix_cache.eviction.victim`.

        spared: evicted only if it is the last one.
        """
        node = victim(self._nodes, self._turns, spared, self.capacity, self._page_bytes)
        if node is None or node.value is None:
            return False
        self._counts["evictions"] += 1
        if self.disk is not None:
            self.disk.save(node.value.snapshot, self._saved_bytes(node.value), salt=node.value.salt)
        self._remove(node)
        return True

    def give_way(self) -> bool:
        """Evict the least recently used snapshot, or discard those of one session that are reserved only."""
        if self.evict_oldest():
            return True
        session = next(iter(self._reserved), None)
        if session is not None:
            self.discard(session)
        return session is not None

    def n_own_pages(self, model: TargetModel) -> int:
        """Return the number of KV pages that only stored snapshots hold."""
        return sum(model.pools.n_holders(page) == n for page, n in self._page_users.items())

    def wants_end(self, model: TargetModel, session: Session) -> bool:
        """Return True if the state at the end of a session is worth a snapshot."""
        if self.exact and model.chunk_alignment > 1:
            return False
        last = session.snapshot_at[-1] if session.snapshot_at else session.n_cached
        return session.use_prefix_cache and session.prefix is None and len(session.token_ids) - 1 - last >= self.min_gain

    def reserve(self, session: Session, copy: StateCopy | None = None) -> None:
        """Take a snapshot of a running session for later sessions, if there is memory; `copy`: see `SessionSnapshot`."""
        while True:
            try:
                snapshot = session.snapshot(copy)
            except (PoolExhausted, OutOfMemory):
                if not self.evict_oldest():
                    return
            else:
                self._reserved.setdefault(session, []).append(snapshot)
                return

    def reserve_rest(self, model: TargetModel, session: Session) -> None:
        """Take a snapshot of a session that is cancelled in its prompt, if it has come far enough since the last one.

        Never raises: the session ends in any case, also on a device that has failed.
        """
        n, cached = session.n_prefilled, session.n_cached
        last = max((length for length in session.snapshot_at if length <= n), default=cached)
        is_exact = not self.exact or n % model.chunk_alignment == 0
        runs = session.state is not None and session.use_prefix_cache and session.prefix is None
        if runs and not session.n_tokens and is_exact and n - last >= self.min_gain:
            with suppress(Exception):
                self.reserve(session)

    def confirm(self, session: Session) -> None:
        """Store the reserved snapshots of a session whose output is visible now, or that was cancelled."""
        for snapshot in self._reserved.pop(session, ()):
            self.store(snapshot, session.conversation, session.cache_salt, is_tentative=session.is_reread)

    def abort(self, session: Session) -> None:
        """Discard the reserved snapshots of a session that ended without visible output."""
        self._counts["aborts"] += len(self._reserved.get(session, ()))
        self.discard(session)

    def discard(self, session: Session) -> None:
        """Discard the reserved snapshots of a session."""
        with ExitStack() as others:
            for snapshot in self._reserved.pop(session, ()):
                others.callback(snapshot.close)

    def longest(self, ids: np.ndarray, drafter: Drafter) -> SessionSnapshot | None:
        """Return the snapshot with the most tokens that is a prefix of ids (n,), if possible one with a state of `drafter`.

        The cache owns it and may close it.
        """
        found = [node.value.snapshot for node in self._prefixes(ids, "") if node.value is not None]
        return max(found, key=lambda snapshot: (snapshot.of(drafter) is not None, snapshot.length), default=None)

    def restore(self, model: TargetModel, saved: SavedState, drafter: Drafter, salt: str = "") -> bool:
        """Add a saved state to memory, where it replaces older snapshots."""
        while True:
            try:
                return self.store(saved.restore(model, drafter), salt=salt)
            except (PoolExhausted, OutOfMemory):
                if not self.evict_oldest():
                    return False

    def close(self) -> None:
        """Save the last used snapshots on disk, as many as fit there, then remove everything."""
        if self.disk is not None:
            room, chosen = self.disk.capacity, list[tuple[CacheEntry, int]]()
            for entry in sorted((node.value for node in self._nodes if node.value), key=lambda entry: -entry.used):
                n_bytes = self._saved_bytes(entry)
                if n_bytes > room:
                    break
                room -= n_bytes
                chosen.append((entry, n_bytes))
            for entry, n_bytes in reversed(chosen):  # the last used one becomes the newest file
                self.disk.save(entry.snapshot, n_bytes, wait=True, salt=entry.salt)
            self.disk.close()
        self.clear()

    def clear(self) -> None:
        """Remove everything from memory, reserved snapshots too."""
        for session in list(self._reserved):
            self.discard(session)
        for node in list(self._nodes):
            self._remove(node)

    def _load(self, disk: DiskTier, model: TargetModel, session: Session, above: int) -> None:
        """Load the longest snapshot on disk for a session's prompt, if there is memory for both."""
        ids, alignment = session.prompt_array[: session.n_prompt - 1], model.chunk_alignment
        name = disk.find(
            ids,
            above,
            alignment if self.exact and alignment > 1 else None,
            needs_no_drafter=lambda length: can_start_at(session.drafter, model, session.n_prompt, length, None),
            drafter=session.drafter,
            salt=session.cache_salt,
        )
        if name is None:
            return
        n_pages = -(-name.length // PAGE) - name.length // PAGE + -(-session.n_prompt // PAGE)
        if n_pages > model.pools.free_pages + len(self._page_users):
            return
        saved = disk.read(name, ids)
        try:
            if saved is not None and self.restore(model, saved, session.drafter, session.cache_salt):
                disk.count(name)
        except FormatError as error:
            disk.discard(name, error)

    def _cut(self, model: TargetModel, session: Session, ids: np.ndarray, above: int) -> bool:
        """Store what a prompt shares with a snapshot that goes on differently; return False if that gains nothing."""
        tree = self._trees.get(session.cache_salt)
        if tree is None:
            return False
        node, n = tree.nearest(ids)
        assert node.value is not None, "trees without a value are removed"
        if self.exact and model.chunk_alignment > 1:
            n = min(n, node.value.snapshot.n_prompt - 1) // model.chunk_alignment * model.chunk_alignment
        if n < above + max(1, self.min_gain) or not can_start_at(session.drafter, model, session.n_prompt, n, None):
            return False
        snapshot = node.value.snapshot.cut(n)
        return snapshot is not None and self.store(snapshot, salt=session.cache_salt)

    def _fits(self, n_copied: int, n_pages: int) -> bool:
        """Return True if further copies of `n_copied` bytes and `n_pages` further pages fit."""
        n_copied += self._n_copied
        return n_copied <= min(self.max_copied, self.capacity - self._page_bytes * (n_pages + len(self._page_users)))

    def _saved_bytes(self, entry: CacheEntry) -> int:
        return entry.n_bytes + self._page_bytes * entry.snapshot.length // PAGE

    def _usable_prefixes(self, model: TargetModel, session: Session, ids: np.ndarray) -> tuple[list[Node[CacheEntry]], int]:
        """Return the nodes that a session may begin with, and how many tokens more the target alone could begin with."""
        nodes = self._prefixes(ids, session.cache_salt)
        found = [node for node in nodes if self._usable(node, model.chunk_alignment)]
        fitting = [node for node in found if self._has_drafter(node, model, session)]
        lost = (found[-1].length if found else 0) - (fitting[-1].length if fitting else 0)
        return fitting, lost

    @staticmethod
    def _has_drafter(node: Node[CacheEntry], model: TargetModel, session: Session) -> bool:
        assert node.value is not None
        own = node.value.snapshot.of(session.drafter)
        return can_start_at(session.drafter, model, session.n_prompt, node.length, own)

    def _usable(self, node: Node[CacheEntry], alignment: int) -> bool:
        entry = node.value
        assert entry is not None
        exact = alignment == 1 or (node.length % alignment == 0 and node.length < entry.snapshot.n_prompt)
        return exact or not self.exact

    def _plan(self, session: Session, alignment: int) -> list[int]:
        """Return the lengths, in rising order, at which a prompt is to be saved."""
        last, wanted = session.n_prompt - 1, list[int]()
        above = session.n_cached
        end = last // alignment * alignment if self.exact else last
        for length in sorted({at // alignment * alignment for at in session.boundaries if 0 < at < last} | {end}):
            if length - above >= self.min_gain:
                wanted.append(length)
                above = length
        return wanted

    def _prefixes(self, ids: np.ndarray, salt: str) -> Iterator[Node[CacheEntry]]:
        """Yield the nodes of a salt that are a prefix of ids (n,), the shortest first."""
        tree = self._trees.get(salt)
        return iter(()) if tree is None else tree.prefixes(ids)

    def store(
        self, snapshot: SessionSnapshot, conversation: str | None = None, salt: str = "", *, is_tentative: bool = False
    ) -> bool:
        """Add a snapshot, which the cache owns from now on; return False if it is too large and was closed."""
        ids = snapshot.ids
        for node in list(self._prefixes(ids, salt)):
            if node.length == snapshot.length and node.value is not None:
                snapshot.take_drafters(node.value.snapshot)
                self._remove(node)
        pages, n_bytes = snapshot.state.pages, snapshot.n_bytes
        while not self._fits(n_bytes, sum(not self._page_users[page] for page in pages)):
            if not self.evict_oldest():
                snapshot.close()
                return False
        self._n_copied += n_bytes
        self._page_users.update(pages)
        node = self._trees[salt].add(ids, CacheEntry(snapshot, n_bytes, conversation, salt, is_tentative=is_tentative))
        self._nodes.add(node)
        if conversation is not None:
            self._n_of[conversation] += 1
        self._touch(node, conversation)
        return True

    def _touch(self, node: Node[CacheEntry], conversation: str | None) -> None:
        """Mark a snapshot as just used by a conversation, and those above it where other sequences branch off."""
        self._clock += 1
        assert node.value is not None
        node.value.used = self._clock
        if conversation is not None and conversation == node.value.conversation:
            node.value.turn = self._turns[conversation]
        for above in node.ancestors():
            if above.value is not None and len(above.children) > 1:
                above.value.used = self._clock

    def _remove(self, node: Node[CacheEntry]) -> None:
        """Remove the snapshot of a node and release its memory."""
        entry = node.value
        assert entry is not None
        self._nodes.remove(node)
        self._trees[entry.salt].remove(node)
        if not self._trees[entry.salt].root.children:
            del self._trees[entry.salt]
        self._n_copied -= entry.n_bytes
        if entry.conversation is not None:
            self._n_of[entry.conversation] -= 1
            if not self._n_of[entry.conversation]:
                del self._n_of[entry.conversation], self._turns[entry.conversation]
        for page in entry.snapshot.state.pages:
            self._page_users[page] -= 1
            if not self._page_users[page]:
                del self._page_users[page]
        entry.snapshot.close()
