"""Order in which snapshots leave the prefix cache."""

from collections.abc import Collection, Mapping
from typing import TypeAlias

from dflash.decode.prefix_cache.radix_tree import Node
from dflash.decode.snapshot import SessionSnapshot

RECENT = 8
"""Requests of a conversation after which a snapshot that none of them used belongs to it no longer.

Titles, summaries and subagents have the name of their conversation too, a few in a row. After a compaction the conversation
goes on without its longest snapshot.
"""

PROTECTED = 0.75
"""Share of the capacity that living conversations protect at most; new sessions get the rest, however many there were."""


class CacheEntry:
    """A stored snapshot.

    turn: number of requests of the conversation at its last use by it.
    is_tentative: true for an answer that was prefilled again, until a session begins with it: the next turn may change it.
    """

    def __init__(
        self,
        snapshot: SessionSnapshot,
        n_bytes: int,
        conversation: str | None = None,
        salt: str = "",
        *,
        is_tentative: bool = False,
    ) -> None:
        self.snapshot, self.n_bytes, self.conversation, self.salt = snapshot, n_bytes, conversation, salt
        self.is_tentative = is_tentative
        self.used = self.turn = 0


EntryNode: TypeAlias = Node[CacheEntry]


def victim(
    nodes: Collection[EntryNode], turns: Mapping[str, int], spared: object, capacity: int, page_bytes: int
) -> EntryNode | None:
    """Return the node whose snapshot is evicted next; None if there is none but the spared one.

    First go snapshots that a later one of the same sequence has replaced, then tentative ones, last the longest one of each
    living conversation. Otherwise the least recently used one goes first; of those used together the longest.
    """
    others = [(node, entry) for node in nodes if (entry := node.value) is not None and entry.snapshot is not spared]
    if not others:
        return None
    protected = _protected(nodes, turns, PROTECTED * capacity, page_bytes)
    node, _ = min(others, key=lambda each: (each[0] in protected, _rank(*each), each[1].used, -each[0].length))
    return node


def _protected(nodes: Collection[EntryNode], turns: Mapping[str, int], n_bytes: float, page_bytes: int) -> set[EntryNode]:
    """Return the longest recently used node of each conversation, as many as fit, the conversations used last first."""
    longest: dict[str, tuple[EntryNode, CacheEntry]] = {}
    for node in nodes:
        entry = node.value
        if (
            entry is None
            or entry.is_tentative
            or entry.conversation is None
            or turns[entry.conversation] - entry.turn > RECENT
        ):
            continue
        if entry.conversation not in longest or node.length > longest[entry.conversation][0].length:
            longest[entry.conversation] = node, entry
    found = set[EntryNode]()
    for node, entry in sorted(longest.values(), key=lambda each: -each[1].used):
        n_bytes -= entry.n_bytes + page_bytes * len(entry.snapshot.state.pages)
        if n_bytes < 0:
            break
        found.add(node)
    return found


def _rank(node: EntryNode, entry: CacheEntry) -> int:
    return 0 if _is_replaced(node, entry) else 1 if entry.is_tentative else 2


def _is_replaced(node: EntryNode, entry: CacheEntry) -> bool:
    """Return True if the only sequence that continues a snapshot has a longer one, from which the next turn will begin.

    A tentative one replaces no others: if the answer comes back changed, the next turn begins at the end of the prompt.
    """
    below = node
    while len(below.children) == 1:
        (below,) = below.children.values()
        if below.value is not None and (entry.is_tentative or not below.value.is_tentative):
            return below.value.used >= entry.used
    return False
