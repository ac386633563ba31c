"""Bounds on the cost and the result of a template's operators, methods and filters, checked before these run."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sized
from functools import partial, wraps
from types import MappingProxyType
from typing import Any, NoReturn

from jinja2.exceptions import SecurityError

from dflash.json_types import JsonMapping, JsonObject
from dflash.model.text.template_budget import MAX_BITS, PAGE, Excess, current

_PART = 64
"""Bytes of a short string object; each part of a split string counts as this many characters."""

_ITEM = 8
"""Steps for each item of a sequence, over which filters iterate in Python, and for each 64 characters of their arguments."""

_ESCAPED = 6
"""Most characters of JSON for a character, as in ``\\u0000``."""

_HUGE = 1 << 62


def made(value: object) -> Any:
    """Count the size of a new value and return the value."""
    if isinstance(value, str):
        current().make(len(value))
    elif isinstance(value, list | tuple):
        current().make(8 * len(value))
    elif isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise Excess(f"it makes an integer of more than {MAX_BITS} bits")
    return value


def guarded(name: str, call: Callable[..., Any], args: tuple[Any, ...], kwargs: JsonObject) -> Any:
    """Call a method or filter on ``args[0]`` if the cost that its name stands for fits the budget.

    A filter's lazy result is worked out at once, so that a chain of filters needs no stack; it stays an iterator.
    """
    budget = current()
    held = [[*arg] if isinstance(arg, Iterator) else arg for arg in args]
    for value in (*held, *kwargs.values()):
        budget.examine(value)
    if held and isinstance(held[0], range | list | tuple):
        arguments = sum(len(value) for value in (*held[1:], *kwargs.values()) if isinstance(value, str))
        budget.step(len(held[0]) * (_ITEM + _ITEM * arguments // 64))
    if name in COSTS:
        cost = COSTS[name](*held, **kwargs)
        budget.afford(cost)
        budget.step(cost // PAGE)
    result = call(*(value if value is arg else iter(value) for value, arg in zip(held, args, strict=True)), **kwargs)
    if isinstance(result, list) and held and isinstance(held[0], str):
        budget.make(_PART * len(result))
    return iter(made([*result])) if isinstance(result, Iterator) else made(result)


def guarded_filters(filters: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Return the filters, with a guard around each whose cost or result is not bounded."""
    return {name: call if name in CHEAP_FILTERS else _wrapped(name, call) for name, call in filters.items()}


def guarded_tests(tests: JsonMapping) -> JsonObject:
    """Return the tests with a guard around those that compare."""
    comparing = {"eq", "equalto", "ne", "lt", "lessthan", "le", "gt", "greaterthan", "ge", "in"}
    comparing |= {"==", "!=", "<", "<=", ">", ">="}
    return {name: _wrapped(name, call) if name in comparing else call for name, call in tests.items()}


CHEAP_FILTERS = frozenset(
    {"abs", "attr", "count", "d", "default", "filesizeformat", "first", "float", "last", "length", "random", "safe"}
)
"""Filters whose cost does not depend on the size of their arguments."""


def _wrapped(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    skipped = 1 if hasattr(call, "jinja_pass_arg") else 0  # the environment or context

    @wraps(call)
    def run(*args: Any, **kwargs: Any) -> Any:
        return guarded(name, partial(call, *args[:skipped]), args[skipped:], kwargs)

    return run


# operators


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
        current().afford(_format(left, *right) if isinstance(right, tuple) else _format(left, right))
    return made(left % right)


def limit_widths(format_spec: str) -> None:
    """Refuse a format of ``str.format`` whose widths exceed the budget."""
    for width in re.findall(r"\d+", format_spec):
        current().afford(int(width[:18]))


# costs in characters, with the parameters of the method or filter


def _product(value: object, *args: Any, **kwargs: Any) -> int:
    """Bound a cost that grows at most as the product of all sizes, and of the numbers that are arguments."""
    return _length(value) * math.prod(map(_size, (*args, *kwargs.values())))


def _size(value: object) -> int:
    if isinstance(value, int | float):
        return int(min(max(abs(value), 1), _HUGE))
    return _length(value) if isinstance(value, Sized) else 1


def _length(value: object) -> int:
    weight = current().weigh(value)
    return max(weight.characters + weight.values * weight.depth, 1)  # depth: each value may be indented


def _slow(*args: Any, **kwargs: Any) -> int:
    """Bound filters that examine each character in Python, or insert constant text."""
    size = math.prod(_size(value) for value in (*args, *kwargs.values()) if isinstance(value, Sized))
    current().step(size // 4)
    return _PART // 2 * size


def _square(*args: Any, **kwargs: Any) -> int:
    """Bound filters that may examine the rest of the text once for each character."""
    return (_slow(*args, **kwargs) // _PART) ** 2 // 64


def _format(text: object, *args: Any, **kwargs: Any) -> int:
    text, values = str(text), current().weigh(kwargs or args).characters
    stars = max((abs(value) for value in args if isinstance(value, int)), default=0)
    widths = [width for field in _WIDTHS.findall(text) for width in field if width]
    return len(text) + text.count("%") * values + sum(stars if width == "*" else int(width[:18]) for width in widths)


def _replace(value: object, old: object, new: object, count: object = None) -> int:  # noqa: ARG001
    return len(text := str(value)) + text.count(str(old)) * (len(str(new)) - len(str(old)))


def _join(items: object, d: object = "", attribute: object = None) -> int:  # noqa: ARG001
    """Either operand may be the separator: that of a method comes first, that of a filter last."""
    return len(items) * len(d if isinstance(d, Sized) else str(d)) if isinstance(items, Sized) else 0


def _parts(text: object, sep: object = None, *_: Any, **__: Any) -> int:
    if isinstance(text, str):
        n_parts = 1 + (text.count(sep) if isinstance(sep, str) and sep else len(text))
        current().afford(_PART * n_parts)
    return 0


def _groups(value: object, n: object, *_: Any, **__: Any) -> int:  # noqa: ARG001
    current().make(_PART * _size(n))
    return 0


def _sum(value: Any, attribute: Any = None, start: Any = 0) -> int:  # noqa: ARG001
    return 4 * (len(start) + current().weigh(value).values) * (len(value) + 1) if isinstance(start, list | tuple) else 0


def _refuse_bytes(*_: Any, **__: Any) -> NoReturn:
    raise SecurityError("a template can't make bytes")


COSTS: Mapping[str, Callable[..., int]] = MappingProxyType(
    {
        **dict.fromkeys(("center", "indent", "ljust", "lstrip", "rjust", "rstrip", "strip"), _product),
        **dict.fromkeys(("translate", "trim", "zfill"), _product),
        **dict.fromkeys(("pprint", "title", "urlencode", "urlize", "wordcount", "xmlattr"), _slow),
        **dict.fromkeys(("striptags", "wordwrap"), _square),
        **dict.fromkeys(("split", "rsplit", "splitlines", "list"), _parts),
        **dict.fromkeys(("batch", "slice"), _groups),
        **dict.fromkeys(("encode", "to_bytes", "from_bytes"), _refuse_bytes),
        "expandtabs": lambda text, tabsize=8: _product(text, tabsize),
        "format": _format,
        "join": _join,
        "replace": _replace,
        "round": lambda value, precision=0, method="common": _size(precision) ** 3,  # noqa: ARG005
        "sum": _sum,
        "tojson": lambda value, *args, **kwargs: _ESCAPED * _product(value, *args, **kwargs),
    }
)
