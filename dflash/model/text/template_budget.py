"""What one rendering of a chat template may cost, counted while it runs."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, KeysView, Mapping, Set, ValuesView
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from jinja2 import TemplateError

STEPS = 10_000_000
"""Steps (nodes of the template that are passed, values that are walked through); a few seconds of one core.

The demo's template takes about 20,000 for an empty conversation."""

STEPS_PER_VALUE = 5_000
"""Further steps for each value of the messages and tools. The demo's template takes about 150 for each."""

STEPS_PER_ITEM = 8
"""Steps of a filter for each item, which it looks at in Python."""

CHARACTERS = 1 << 26
"""Characters of all strings that are made, memory and output alike; at most 256 MiB."""

CHARACTERS_PER_CHARACTER = 64
"""Further characters for each one of the messages and tools. Real templates copy each about 10 times."""

SECONDS = 60.0
"""Seconds after which a rendering ends wherever it is: the last resort, on a machine that is very slow."""

MAX_DEPTH = 1000
"""Containers in containers. Python's own hash of a tuple has no bound and would overflow the stack."""

MAX_LAZY = 100
"""Filters in a row that yield one item at a time, each of which takes a part of the stack."""

MAX_BITS = 1 << 14
"""Bits of an integer, those of the 4,300 digits that Python reads and writes."""

_BETWEEN_LOOKS = 50_000
_PAGE = 1 << 12
"""Characters that are searched or copied in about the time of a step."""

_SCALARS = frozenset({int, float, bool, type(None)})


class Excess(TemplateError):
    """A template asked for more than a rendering may cost."""


class Weight(NamedTuple):
    """Size of a container, as it would be written out.

    Parameters
    ----------
    value : object
        The container; it must not go while its id is remembered.
    characters, values, depth : int
        Characters, values at every depth, containers in containers. What is there twice counts twice.
    """

    value: Any
    characters: int
    values: int
    depth: int


class Budget:
    """Steps and characters that are left of a rendering.

    Parameters
    ----------
    variables : mapping
        What the template is rendered with; large conversations may cost more.

    Notes
    -----
    Counts do not depend on the machine: a template that renders once always renders. Containers are measured once each,
    since nothing in the sandbox can change one.
    """

    __slots__ = ("_deadline", "_extended", "_items", "_look", "_variables", "_weights", "characters", "steps")

    def __init__(self, variables: Mapping[str, Any]) -> None:
        self._variables, self._extended = variables, False
        self._items: set[int] | None = None
        self._weights: dict[int, Weight] = {}
        self._deadline = time.monotonic() + SECONDS
        self.steps, self.characters = STEPS, CHARACTERS
        self._look = self.steps - _BETWEEN_LOOKS

    def step(self, n: int) -> None:
        """Count `n` steps."""
        self.steps -= n
        if self.steps < self._look:
            self._look_around()

    def make(self, n: int) -> None:
        """Count `n` characters that were made."""
        self.characters -= n
        if self.characters < 0:
            self.afford(0)

    def afford(self, n: int) -> None:
        """Refuse to make `n` characters if there are not so many left."""
        if n > self.characters:
            self._extend()
            if n > self.characters:
                raise Excess("it makes more text than a conversation of this size can need")

    def is_given(self, value: Any) -> bool:
        """Whether a value is an item of what the template was given, as a tool is: then it is no larger than that."""
        if self._items is None:
            lists = [value for value in self._variables.values() if type(value) is list]
            self._items = {id(item) for items in lists for item in items}
        return id(value) in self._items

    def examine(self, value: Any) -> None:
        """Count what it takes to walk through a value: to search, compare, hash or write it."""
        kind = type(value)
        if kind is str or isinstance(value, str):
            if len(value) > _PAGE:
                self.step(len(value) // _PAGE)
        elif kind not in _SCALARS:
            weight = self.weigh(value)
            self.step(weight[2] + weight[1] // _PAGE)

    def weigh(self, value: Any) -> Weight:
        """Measure a value; refuse one that is too large to be written out."""
        known = self._weights.get(id(value))
        if known is not None:
            return known
        items = _items_of(value)
        if items is None:
            return _leaf(value)
        characters, values, depth = 2 + 4 * len(items), 1 + len(items), 0
        for item in items:
            kind = type(item)
            if kind is str:
                characters += len(item)
            elif kind is list or kind is dict or kind not in _SCALARS:
                inner = self.weigh(item)
                characters += inner[1]
                values += inner[2]
                depth = max(depth, inner[3])
            else:
                characters += 20 if kind is not int else item.bit_length() // 3
        if characters > self.characters:
            self.afford(characters)
        if depth >= MAX_DEPTH:
            raise Excess(f"it nests values more than {MAX_DEPTH} deep")
        self.step(len(items))
        weight = self._weights[id(value)] = Weight(value, characters, values, depth + 1)
        return weight

    def _look_around(self) -> None:
        if self.steps < 0:
            self._extend()
            if self.steps < 0:
                raise Excess("it takes more steps than a conversation of this size can need")
        self._look = self.steps - _BETWEEN_LOOKS
        if time.monotonic() > self._deadline:
            raise Excess(f"it takes more than {SECONDS:g} seconds")

    def _extend(self) -> None:
        """Add what a large conversation may cost beyond a small one; only now, since measuring one takes time."""
        if not self._extended:
            self._extended = True
            left, self.steps, self.characters = (self.steps, self.characters), 1 << 62, 1 << 62
            weight = self.weigh(self._variables)
            self.steps = left[0] + STEPS_PER_VALUE * weight.values
            self.characters = left[1] + CHARACTERS_PER_CHARACTER * weight.characters


_CURRENT: ContextVar[Budget] = ContextVar("budget")

current = _CURRENT.get
"""Budget of the rendering that goes on in this thread."""


@contextmanager
def spending(budget: Budget) -> Iterator[None]:
    """Take what templates cost from `budget` within the block."""
    token = _CURRENT.set(budget)
    try:
        yield
    finally:
        _CURRENT.reset(token)


class Counted:
    """An iterator with some steps for each item.

    Parameters
    ----------
    items : iterable
    depth : int
        Iterators that this one reads through, one after the other.

    Raises
    ------
    Excess
        If they are so many that Python could not walk through them.
    """

    __slots__ = ("_budget", "_next", "depth")

    def __init__(self, items: Iterable[Any], depth: int = 0) -> None:
        if depth > MAX_LAZY:
            raise Excess(f"it chains more than {MAX_LAZY} filters that yield one item at a time")
        self._budget, self._next, self.depth = current(), iter(items).__next__, depth

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._budget.step(STEPS_PER_ITEM)
        return self._next()


def _items_of(value: Any) -> Collection[Any] | None:
    """Return what a container holds, None for anything else."""
    kind = type(value)
    if kind is list:
        return value
    if kind is dict:
        return [*value, *value.values()]
    if isinstance(value, tuple | Set | KeysView | ValuesView | list):
        return value
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    return None


def _leaf(value: Any) -> Weight:
    if isinstance(value, str):
        return Weight(value, len(value), 1, 0)
    if isinstance(value, int):
        return Weight(value, value.bit_length() // 3 + 2, 1, 0)
    return Weight(value, 64, 1, 0)
