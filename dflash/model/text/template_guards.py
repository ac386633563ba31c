"""Guards that bound the results of a template's operators, string methods and filters before these run."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sized
from functools import wraps
from types import MappingProxyType
from typing import Any

from jinja2.exceptions import SecurityError

from dflash.json_types import JsonMapping, JsonObject
from dflash.model.text.template_budget import MAX_BITS, PAGE, Excess, current

_PART = 64
"""Bytes of a short string object; each part of a split string counts as this many characters."""

_STEPS_PER_ITEM = 8
"""Steps of a filter for each item, since filters iterate in Python."""

_ESCAPED = 6
"""Most characters of JSON for a character, as in ``\\u0000``."""

_HUGE = 1 << 62
_MAX_PRECISION = 1000

Guard = Callable[..., None]


def made(value: Any) -> Any:
    """Count the size of a new value and return the value."""
    if isinstance(value, str):
        current().make(len(value))
    elif isinstance(value, list | tuple):
        current().make(8 * len(value))
    elif isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise Excess(f"it makes an integer of more than {MAX_BITS} bits")
    return value


# operators


def plus(left: Any, right: Any) -> Any:
    """``left + right``."""
    return made(left + right)


def minus(left: Any, right: Any) -> Any:
    """``left - right``; the difference of two mappings' keys is a set."""
    current().examine(left)
    current().examine(right)
    return left - right


def times(left: Any, right: Any) -> Any:
    """``left * right`` with a bounded size."""
    for items, count in ((left, right), (right, left)):
        if isinstance(items, Sized) and isinstance(count, int):
            current().afford((1 if isinstance(items, str) else 8) * len(items) * count)
    return made(left * right)


def power(left: Any, right: Any) -> Any:
    """``left ** right`` with a bounded size."""
    if isinstance(left, int) and isinstance(right, int) and abs(left) > 1 and left.bit_length() * right > MAX_BITS:
        raise Excess(f"it makes an integer of more than {MAX_BITS} bits")
    return left**right


_WIDTHS = re.compile(r"[%)][#0\- +]*(\*|\d*)(?:\.(\*|\d*))?")
"""Width and precision, which follow ``%`` or the bracket that ends a field's key."""


def percent(left: Any, right: Any) -> Any:
    """``left % right``, with bounded widths if `left` is a format string."""
    if isinstance(left, str):
        _check_percent(left, right)
    return made(left % right)


def _check_percent(text: str, values: Any) -> None:
    stars = [abs(value) for value in values if isinstance(value, int)] if isinstance(values, tuple) else []
    size = {"": 0, "*": max(stars, default=0)}
    width = sum(size[n] if n in size else _number(n) for field in _WIDTHS.findall(text) for n in field)
    budget = current()
    budget.afford(len(text) + width + text.count("%") * budget.weigh(values).characters)


def _number(digits: str) -> int:
    return int(digits[:18])


def limit_widths(format_spec: str) -> None:
    """Refuse a format of ``str.format`` whose widths exceed the budget."""
    for width in re.findall(r"\d+", format_spec):
        current().afford(_number(width))


# methods


def call_text_method(method: Callable[..., Any], text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a method of a string if its result fits the budget."""
    budget, name = current(), method.__name__
    budget.examine(text)
    if name == "join" and len(args) == 1 and isinstance(args[0], Iterator):
        args = ([*args[0]],)
    for value in (*args, *kwargs.values()):
        budget.examine(value)
    if name in _TEXT_GUARDS:
        _TEXT_GUARDS[name](text, *args, **kwargs)
    result = method(*args, **kwargs)
    if isinstance(result, list):
        budget.make(_PART * len(result))
    return made(result)


def check_method(name: str, owner: Any) -> None:
    """Refuse methods of integers that make bytes of any length; count the items that methods of containers examine."""
    if isinstance(owner, int) and name in ("to_bytes", "from_bytes"):
        _refuse_bytes()
    if isinstance(owner, list | tuple | range):
        current().step(len(owner))


def _refuse_bytes(*_: Any, **__: Any) -> None:
    raise SecurityError("a template can't make bytes")


def _product(*args: Any, **kwargs: Any) -> None:
    """Bound a cost that grows at most as the product of all sizes and numbers."""
    cost = math.prod(map(_size, (*args, *kwargs.values())))
    current().step(cost // PAGE)
    current().afford(cost)


def _size(value: Any) -> int:
    if isinstance(value, int | float):
        return int(min(max(abs(value), 1), _HUGE))
    return max(current().weigh(value).characters, 1) if isinstance(value, Sized) else 1


def _expand(text: str, tabsize: Any = 8) -> None:
    _product(text, tabsize)


def _replace(value: Any, old: Any, new: Any, count: Any = None) -> None:  # noqa: ARG001
    text, old, new = str(value), str(old), str(new)
    current().afford(len(text) + text.count(old) * (len(new) - len(old)))


def _join(text: str, items: Any) -> None:
    current().afford(len(text) * len(items))


def _parts(text: Any, sep: Any = None, *_: Any, **__: Any) -> None:
    if isinstance(text, str):
        n = text.count(sep) if isinstance(sep, str) and sep else len(text)
        current().afford(_PART * (n + 1))


def _strip(text: Any, chars: Any = "") -> None:
    current().step(len(str(text)) * len(str(chars)) // PAGE)


_TEXT_GUARDS: Mapping[str, Guard] = MappingProxyType(
    {
        **dict.fromkeys(("center", "ljust", "rjust", "translate", "zfill"), _product),
        **dict.fromkeys(("strip", "lstrip", "rstrip"), _strip),
        **dict.fromkeys(("split", "rsplit"), _parts),
        "splitlines": _parts,
        "expandtabs": _expand,
        "replace": _replace,
        "join": _join,
        "encode": _refuse_bytes,
    }
)


# filters


def guarded_filters(filters: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Return the filters, with a guard around each whose cost or result is not bounded."""
    return {
        name: call if name in CHEAP_FILTERS else _guarded(call, FILTER_GUARDS.get(name)) for name, call in filters.items()
    }


def guarded_tests(tests: JsonMapping) -> JsonObject:
    """Return the tests with a guard around those that compare."""
    words = {"eq", "equalto", "ne", "lt", "lessthan", "le", "gt", "greaterthan", "ge", "in"}
    comparing = words | {"==", "!=", "<", "<=", ">", ">="}
    return {name: _guarded(call, None) if name in comparing else call for name, call in tests.items()}


CHEAP_FILTERS = frozenset(
    {"abs", "attr", "count", "d", "default", "filesizeformat", "first", "float", "last", "length", "random", "safe"}
)
"""Filters whose cost does not depend on the size of their arguments."""


def _guarded(call: Callable[..., Any], guard: Guard | None) -> Callable[..., Any]:
    skipped = 1 if hasattr(call, "jinja_pass_arg") else 0

    @wraps(call)
    def run(*args: Any, **kwargs: Any) -> Any:
        budget, given = current(), [*args[skipped:]]
        if given and isinstance(given[0], Iterator):
            given[0] = [*given[0]]
        if given and isinstance(given[0], range | list | tuple | Mapping):
            budget.step(_STEPS_PER_ITEM * len(given[0]))
        for each in (*given, *kwargs.values()):
            budget.examine(each)
        if guard is not None:
            guard(*given, **kwargs)
        if len(args) > skipped and isinstance(args[skipped], Iterator):
            given[0] = iter(given[0])
        result = call(*args[:skipped], *given, **kwargs)
        # A filter's lazy result is worked out at once, so that a chain of filters needs no stack; it stays an iterator.
        return iter(made([*result])) if isinstance(result, Iterator) else made(result)

    return run


def _filter_format(value: Any, *args: Any, **kwargs: Any) -> None:
    _check_percent(str(value), kwargs or args)


def _filter_groups(value: Any, n: Any, fill: Any = None) -> None:  # noqa: ARG001
    current().make(_PART * _size(n))


def _filter_round(value: Any, precision: Any = 0, method: Any = "common") -> None:  # noqa: ARG001
    if _size(precision) > _MAX_PRECISION:
        raise Excess(f"it rounds to more than {_MAX_PRECISION} digits")


def _filter_sum(value: Any, attribute: Any = None, start: Any = 0) -> None:  # noqa: ARG001
    if isinstance(start, list | tuple):
        total = len(start) + current().weigh(value).values
        current().afford(4 * total * (len(value) + 1))


def _filter_sort(value: Any, *_: Any, **__: Any) -> None:
    current().step(16 * current().weigh(value).values)


def _filter_striptags(value: Any) -> None:
    text = str(value)
    current().step(len(text) * text.count("<!--") // PAGE + len(text) // 16)


def _filter_slow(*args: Any, **kwargs: Any) -> None:
    """Guard filters that examine each character in Python, or insert constant text."""
    cost = math.prod(_size(value) for value in (*args, *kwargs.values()) if isinstance(value, Sized))
    current().step(cost // 4)
    current().afford(_PART // 2 * cost)


def _filter_wordwrap(value: Any, width: Any = 79, *args: Any, **kwargs: Any) -> None:
    _filter_slow(value, *args, **kwargs)
    current().step(_size(value) ** 2 // _size(width) // 256)


def _filter_join(value: Any, d: Any = "", attribute: Any = None) -> None:  # noqa: ARG001
    if isinstance(value, Sized):
        current().afford(len(value) * len(str(d)))


def _filter_tojson(value: Any, *args: Any, **kwargs: Any) -> None:
    weight = current().weigh(value)
    settings = math.prod(map(_size, (*args, *kwargs.values())))  # indentation and separators
    current().afford(_ESCAPED * (weight.characters + weight.values * weight.depth) * settings)


FILTER_GUARDS: Mapping[str, Guard] = MappingProxyType(
    {
        **dict.fromkeys(("sort", "unique", "groupby", "dictsort", "min", "max"), _filter_sort),
        **dict.fromkeys(("pprint", "urlize", "title", "wordcount", "truncate", "xmlattr", "urlencode"), _filter_slow),
        **dict.fromkeys(("center", "indent"), _product),
        **dict.fromkeys(("batch", "slice"), _filter_groups),
        "format": _filter_format,
        "join": _filter_join,
        "list": _parts,
        "replace": _replace,
        "round": _filter_round,
        "striptags": _filter_striptags,
        "sum": _filter_sum,
        "tojson": _filter_tojson,
        "trim": _strip,
        "wordwrap": _filter_wordwrap,
    }
)
"""Guards that run before a filter, in addition to the check of its arguments' size."""
