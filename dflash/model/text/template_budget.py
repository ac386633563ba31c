"""Budget of steps and characters for one rendering of a chat template."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, KeysView, Mapping, Set, ValuesView
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from jinja2 import TemplateError

from dflash.json_types import JsonMapping

STEPS = 10_000_000
"""Steps (template nodes executed and values examined) of a rendering; a few seconds on one core.

The demo's template takes about 20,000 for an empty conversation."""

STEPS_PER_VALUE = 5_000
"""Further steps for each value of the messages and tools. The demo's template takes about 150 for each."""

CHARACTERS = 1 << 26
"""Characters of all strings that a rendering makes, output and temporary ones: 2 ** 26, at most 256 MiB."""

CHARACTERS_PER_CHARACTER = 64
"""Further characters for each one of the messages and tools. Real templates copy each about 10 times."""

SECONDS = 60.0
"""Seconds after which a rendering is stopped in any case: a last resort on a very slow machine."""

MAX_DEPTH = 1000
"""Most levels of nested containers. Python's hash of a tuple recurses without a limit and would overflow the stack."""

MAX_BITS = 1 << 14
"""Most bits of an integer: about the 4,300 decimal digits that Python converts from and to text."""

PAGE = 1 << 12
"""Characters that are searched or copied in about the time of one step."""

_BETWEEN_LOOKS = 50_000
"""Steps between two checks of the clock."""


class Excess(TemplateError):
    """A template exceeded the budget of its rendering."""


class Weight(NamedTuple):
    """Size of a value as if it were converted to text; a value that a container holds twice counts twice."""

    characters: int
    values: int = 1
    depth: int = 0


class Budget:
    """Steps and characters left for a rendering.

    variables: variables of the rendering; large conversations get a larger budget.

    Counts do not depend on the machine: a template that renders once always renders. Each container is measured once, since
    no template can change one in the sandbox.
    """

    def __init__(self, variables: JsonMapping) -> None:
        self._weights: dict[int, tuple[Any, Weight]] = {}  # also keeps the containers alive, whose ids are the keys
        self._deadline = time.monotonic() + SECONDS
        self.steps = self.characters = self._look = 1 << 62
        conversation = self.weigh(variables)
        self.steps = STEPS + STEPS_PER_VALUE * conversation.values
        self.characters = CHARACTERS + CHARACTERS_PER_CHARACTER * conversation.characters
        self._look = self.steps - _BETWEEN_LOOKS

    def step(self, n: int) -> None:
        """Count `n` steps."""
        self.steps -= n
        if self.steps < 0:
            raise Excess("it takes more steps than a conversation of this size can need")
        if self.steps < self._look:
            self._look = self.steps - _BETWEEN_LOOKS
            if time.monotonic() > self._deadline:
                raise Excess(f"it takes more than {SECONDS:g} seconds")

    def make(self, n: int) -> None:
        """Count `n` characters of new text."""
        self.afford(n)
        self.characters -= n

    def afford(self, n: int) -> None:
        """Raise `Excess` if fewer than `n` characters are left, without counting them."""
        if n > self.characters:
            raise Excess("it makes more text than a conversation of this size can need")

    def examine(self, value: object) -> None:
        """Count the steps of one walk through a value, as in searching, comparing, hashing or printing it."""
        if isinstance(value, str):
            self.step(len(value) // PAGE)
        else:
            weight = self.weigh(value)
            self.step(weight.values + weight.characters // PAGE)

    def weigh(self, value: object) -> Weight:
        """Measure a value; raise `Excess` if its text would exceed the budget or it is nested too deeply."""
        if isinstance(value, str):
            return Weight(len(value))
        if isinstance(value, int):
            return Weight(2 + value.bit_length() // 3)
        if value is None or isinstance(value, float):
            return Weight(24)
        if id(value) in self._weights:
            return self._weights[id(value)][1]
        items = _items_of(value)
        if items is None:
            return Weight(64)
        characters, values, depth = 2 + 4 * len(items), 1, 0
        for item in items:
            if type(item) is str:  # most items are; twice as fast
                characters += len(item)
                values += 1
            else:
                inner = self.weigh(item)
                characters += inner.characters
                values += inner.values
                depth = max(depth, inner.depth)
        self.afford(characters)
        if depth >= MAX_DEPTH:
            raise Excess(f"it nests values more than {MAX_DEPTH} deep")
        self.step(len(items))
        weight = Weight(characters, values, depth + 1)
        self._weights[id(value)] = value, weight
        return weight


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


def _items_of(value: object) -> Collection[Any] | None:
    """Return the items of a container; None for any other value."""
    if isinstance(value, dict | Mapping):  # the first is a fast path
        return [*value.keys(), *value.values()]
    return value if isinstance(value, list | tuple | Set | KeysView | ValuesView) else None
