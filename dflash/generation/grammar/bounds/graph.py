"""Rules of a grammar, or parts of a schema, that lead into each other."""

from collections.abc import Iterator


class RuleGraph:
    """A graph of rules. Each node matches where all of its parts match, or any of them.

    All methods take linear time and do not recurse.
    """

    def __init__(self) -> None:
        self.labels: list[str] = []
        self._any: list[bool] = []
        self._weights: list[int] = []
        self._parts: list[list[int]] = []
        self._inner: list[list[int]] = []
        self._loose: list[list[int]] = []

    def add(self, label: str, *, any_of: bool = False, weight: int = 1) -> int:
        """Add a node without parts: it matches something, unless it needs any of its parts."""
        self.labels.append(label)
        self._weights.append(weight)
        self._any.append(any_of)
        for edges in (self._parts, self._inner, self._loose):
            edges.append([])
        return len(self.labels) - 1

    def link(self, node: int, part: int) -> None:
        """Add a part that the node begins with or needs at once."""
        self._parts[node].append(part)

    def link_inner(self, node: int, part: int) -> None:
        """Add a part that the node needs after some text of its own."""
        self._inner[node].append(part)

    def link_loose(self, node: int, part: int) -> None:
        """Add a part that the node does not need."""
        self._loose[node].append(part)

    def reached(self, root: int) -> set[int]:
        """Return the nodes to which a node leads, and the node itself."""
        found, waiting = {root}, [root]
        while waiting:
            for part in self._all(waiting.pop()):
                if part not in found:
                    found.add(part)
                    waiting.append(part)
        return found

    def dead(self, *, inner: bool) -> set[int]:
        """Return the nodes that match nothing, since they lead only into themselves."""
        needed, users, waiting = [], [list[int]() for _ in self.labels], []
        for node, any_of in enumerate(self._any):
            parts = self._parts[node] + (self._inner[node] if inner else [])
            needed.append(1 if any_of else len(parts))
            for part in parts:
                users[part].append(node)
            if not needed[node]:
                waiting.append(node)
        while waiting:
            for user in users[waiting.pop()]:
                needed[user] -= 1
                if not needed[user]:
                    waiting.append(user)
        return {node for node, n in enumerate(needed) if n > 0}

    def longest_chain(self, root: int) -> int:
        """Return the largest sum of weights in a row from a node on. Nodes that lead into each other in a circle all count.

        Tarjan's algorithm finds the circles, each after all to which it leads.
        """
        number, low, longest = dict[int, int](), dict[int, int](), dict[int, int]()
        open_, path = list[int](), [(root, self._all(root))]
        number[root] = low[root] = 0
        open_.append(root)
        while path:
            node, parts = path[-1]
            part = next(parts, None)
            if part is not None:
                if part not in number:
                    number[part] = low[part] = len(number)
                    open_.append(part)
                    path.append((part, self._all(part)))
                elif part not in longest:
                    low[node] = min(low[node], number[part])
                continue
            path.pop()
            if path:
                low[path[-1][0]] = min(low[path[-1][0]], low[node])
            if low[node] == number[node]:
                circle = [open_.pop()]
                while circle[-1] != node:
                    circle.append(open_.pop())
                after = max((longest.get(part, 0) for each in circle for part in self._all(each)), default=0)
                longest.update(dict.fromkeys(circle, sum(self._weights[each] for each in circle) + after))
        return longest[root]

    def _all(self, node: int) -> Iterator[int]:
        for edges in (self._parts, self._inner, self._loose):
            yield from edges[node]
