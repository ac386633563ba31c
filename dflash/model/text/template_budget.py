"""Budget of steps and characters for one rendering of a chat template."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, KeysView, Mapping, Set, ValuesView
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from jinja2 import TemplateError

STEPS = 10_000_000
"""Steps (template nodes executed and values examined) of a rendering; a few seconds on one core.

The demo's template takes about 20,000 for an empty conversation."""

STEPS_PER_VALUE = 5_000
"""Further steps for each value of the messages and tools. The demo's template takes about 150 for each."""

STEPS_PER_ITEM = 8
"""Steps of a filter for each item, since filters iterate in Python."""

CHARACTERS = 1 << 26
"""Characters of all strings that a rendering makes, output and temporary ones: 2 ** 26, at most 256 MiB."""

CHARACTERS_PER_CHARACTER = 64
"""Further characters for each one of the messages and tools. Real templates copy each about 10 times."""

SECONDS = 60.0
"""Seconds after which a rendering is stopped in any case: a last resort on a very slow machine."""

MAX_DEPTH = 1000
"""Most levels of nested containers. Python's hash of a tuple recurses without a limit and would overflow the stack."""

MAX_LAZY = 100
"""Most chained filters that yield one item at a time; each takes a stack frame."""

MAX_BITS = 1 << 14
"""Most bits of an integer: about the 4,300 decimal digits that Python converts from and to text."""

_BETWEEN_LOOKS = 50_000
"""Steps between two checks of the clock."""

_PAGE = 1 << 12
"""Characters that are searched or copied in about the time of one step."""

_SCALARS = frozenset({int, float, bool, type(None)})


class Excess(TemplateError):
    """A template exceeded the budget of its rendering."""


class Weight(NamedTuple):
    """Size of a container, as if it were converted to text.

    Parameters
    ----------
    value : object
        The container, kept alive because its id is a cache key.
    characters, values, depth : int
        Characters; values at all levels; levels of nested containers. A value that occurs twice counts twice.
    """

    value: Any
    characters: int
    values: int
    depth: int


class Budget:
    """Steps and characters left for a rendering.

    Parameters
    ----------
    variables : mapping
        Variables of the rendering; large conversations get a larger budget.

    Notes
    -----
    Counts do not depend on the machine: a template that renders once always renders. Each container is measured once, since
    no template can change one in the sandbox.
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
        """Count `n` characters of new text."""
        self.characters -= n
        if self.characters < 0:
            self.afford(0)

    def afford(self, n: int) -> None:
        """Raise `Excess` if fewer than `n` characters are left, without counting them."""
        if n > self.characters:
            self._extend()
            if n > self.characters:
                raise Excess("it makes more text than a conversation of this size can need")

    def is_given(self, value: Any) -> bool:
        """Return True if a value is an item of a list variable, such as a tool; its size is bounded by the request's."""
        if self._items is None:
            lists = [value for value in self._variables.values() if type(value) is list]
            self._items = {id(item) for items in lists for item in items}
        return id(value) in self._items

    def examine(self, value: Any) -> None:
        """Count the steps of one walk through a value, as in searching, comparing, hashing or printing it."""
        kind = type(value)
        if kind is str or isinstance(value, str):
            if len(value) > _PAGE:
                self.step(len(value) // _PAGE)
        elif kind not in _SCALARS:
            weight = self.weigh(value)
            self.step(weight[2] + weight[1] // _PAGE)

    def weigh(self, value: Any) -> Weight:
        """Measure a value; raise `Excess` if its text would exceed the budget."""
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
        """Add the part of the budget that depends on the conversation; done late, since measuring takes time."""
        if not self._extended:
            self._extended = True
            left, self.steps, self.characters = (self.steps, self.characters), 1 << 62, 1 << 62
            weight = self.weigh(self._variables)
            self.steps = left[0] + STEPS_PER_VALUE * weight.values
            self.characters = left[1] + CHARACTERS_PER_CHARACTER * weight.characters


_CURRENT: ContextVar[Budget] = ContextVar("budget")

current = _CURRENT.get
"""Returns the budget of the rendering in this thread."""


@contextmanager
def spending(budget: Budget) -> Iterator[None]:
    """Make `budget` the current one within the block."""
    token = _CURRENT.set(budget)
    try:
        yield
    finally:
        _CURRENT.reset(token)


class Counted:
    """An iterator that counts `STEPS_PER_ITEM` steps for each item.

    Parameters
    ----------
    items : iterable
    depth : int
        Number of chained iterators below this one.

    Raises
    ------
    Excess
        If more than `MAX_LAZY` iterators are chained, which would overflow the stack.
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
    """Return the items of a container; None for any other value."""
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
