"""Radix tree: values by sequences of token ids, found by the sequences that they are a prefix of."""

from collections.abc import Iterator
from typing import Generic, TypeVar

import numpy as np

V = TypeVar("V")


class Node(Generic[V]):
    """A prefix of one or more stored sequences.

    edge: int32 (n,); ids between the parent's prefix and this one; empty for the root.
    value: value stored for exactly this prefix, or None.
    """

    def __init__(self, edge: np.ndarray, parent: "Node[V] | None") -> None:
        self.edge, self.parent = edge, parent
        self.length: int = len(edge) + (parent.length if parent is not None else 0)
        self.children: dict[int, Node[V]] = {}
        self.value: V | None = None

    def ancestors(self) -> "Iterator[Node[V]]":
        """Yield the nodes above this one, the parent first."""
        node = self.parent
        while node is not None:
            yield node
            node = node.parent

    def descendants(self) -> "Iterator[Node[V]]":
        """Yield the nodes below this one."""
        nodes = [*self.children.values()]
        while nodes:
            yield (node := nodes.pop())
            nodes += node.children.values()


class RadixTree(Generic[V]):
    """Map from sequences of token ids to values. A lookup takes time linear in the number of ids."""

    def __init__(self) -> None:
        self.root: Node[V] = Node(np.zeros(0, np.int32), None)

    def prefixes(self, ids: np.ndarray) -> Iterator[Node[V]]:
        """Yield the nodes with a value that are a prefix of ids (n,), the shortest first."""
        node, at = self.root, 0
        while True:
            if node.value is not None:
                yield node
            child = node.children.get(int(ids[at])) if at < len(ids) else None
            if child is None or _n_common(child.edge, ids[at:]) < len(child.edge):
                return
            node, at = child, child.length

    def nearest(self, ids: np.ndarray) -> tuple[Node[V], int]:
        """Return a node with a value that begins with the most leading ids of ids (n,), and their number.

        An empty tree returns its root.
        """
        node, at = self.root, 0
        while at == node.length and at < len(ids) and int(ids[at]) in node.children:
            node = node.children[int(ids[at])]
            at += _n_common(node.edge, ids[at:])
        while node.value is None and node.children:
            node = next(iter(node.children.values()))
        return node, at

    def add(self, ids: np.ndarray, value: V) -> Node[V]:
        """Store a value for ids (n,) in place of an earlier one; return its node."""
        node, at = self.root, 0
        while at < len(ids):
            child = node.children.get(int(ids[at]))
            if child is None:
                child = Node(np.array(ids[at:], np.int32), node)
                node.children[int(ids[at])] = child
            else:
                n = _n_common(child.edge, ids[at:])
                if n < len(child.edge):
                    child = self._split(child, n)
            node, at = child, child.length
        node.value = value
        return node

    def remove(self, node: Node[V]) -> None:
        """Remove the value of a node, and the nodes that nothing needs after that."""
        node.value = None
        while node.parent is not None and node.value is None and not node.children:
            del node.parent.children[int(node.edge[0])]
            node = node.parent
        if node.parent is not None and node.value is None and len(node.children) == 1:
            (child,) = node.children.values()
            child.edge, child.parent = np.concatenate([node.edge, child.edge]), node.parent
            node.parent.children[int(node.edge[0])] = child

    def _split(self, child: Node[V], n: int) -> Node[V]:
        """Insert and return a node after the first `n` ids of a child's edge."""
        above = child.parent
        assert above is not None
        middle: Node[V] = Node(child.edge[:n].copy(), above)
        above.children[int(child.edge[0])] = middle
        child.edge, child.parent = child.edge[n:].copy(), middle
        middle.children[int(child.edge[0])] = child
        return middle


def _n_common(a: np.ndarray, b: np.ndarray) -> int:
    """Return the number of leading ids that two sequences share."""
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    return int(differs.argmax()) if differs.any() else n
