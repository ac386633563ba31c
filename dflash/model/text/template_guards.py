"""Guards that bound the results of a template's operators, string methods and filters before these run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sized
from functools import wraps
from types import MappingProxyType
from typing import Any

from jinja2.exceptions import SecurityError

from dflash.model.text.template_budget import MAX_BITS, STEPS_PER_ITEM, Budget, Counted, Excess, current

_PART = 64
"""Bytes of a short string object; each part of a split string counts as this many characters."""

_MAX_COUNT = 100_000
"""Most groups of a filter, equal to the limit of Jinja's sandbox for `range`."""

_SHORT = 1 << 12
_PLAIN = frozenset({str, list, dict, tuple})
_MAX_INDENT = 64
_MAX_ARGUMENT = 1000
_MAX_PRECISION = 1000

Guard = Callable[..., None]


def made(value: Any) -> Any:
    """Count the size of a new value; return the value, wrapping iterators in `Counted`."""
    kind = type(value)
    if kind is str:
        current().make(len(value))
    elif kind is list or kind is tuple:
        current().make(8 * len(value))
    elif kind is int:
        if value.bit_length() > MAX_BITS:
            raise Excess(f"it makes an integer of more than {MAX_BITS} bits")
    elif isinstance(value, str):
        current().make(len(value))
    elif isinstance(value, Iterator):
        return value if type(value) is Counted else Counted(value)
    return value


# operators


def plus(left: Any, right: Any) -> Any:
    """``left + right``."""
    return made(left + right)


def minus(left: Any, right: Any) -> Any:
    """``left - right``; the difference of two mappings' keys is a set."""
    if type(left) is not int:
        current().examine(left)
        current().examine(right)
    return left - right


def times(left: Any, right: Any) -> Any:
    """``left * right`` with a bounded size."""
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > MAX_BITS:
            raise Excess(f"it makes an integer of more than {MAX_BITS} bits")
        return left * right
    for items, count in ((left, right), (right, left)):
        if isinstance(items, Sized) and isinstance(count, int):
            current().afford((1 if isinstance(items, str) else 8) * len(items) * max(count, 0))
    return made(left * right)


def power(left: Any, right: Any) -> Any:
    """``left ** right`` with a bounded size."""
    if isinstance(left, int) and isinstance(right, int) and abs(left) > 1 and left.bit_length() * right > MAX_BITS:
        raise Excess(f"it makes an integer of more than {MAX_BITS} bits")
    return left**right


def percent(left: Any, right: Any) -> Any:
    """``left % right``, with bounded widths if `left` is a format string."""
    if isinstance(left, str):
        _check_percent(current(), left, right)
        return made(left % right)
    return left % right


_FIELD = re.compile(r"[#0\- +]*(\*|\d*)(?:\.(\*|\d*))?[hlL]?")


def _check_percent(budget: Budget, text: str, values: Any) -> None:
    size, fields = len(text), 0
    at = text.find("%") + 1
    while at:
        if text.startswith("(", at):
            at = _after_key(text, at)
        field = _FIELD.match(text, at)
        assert field is not None  # the pattern also matches the empty string
        for width in field.groups():
            size += _number(values, width)
        fields += 1
        at = text.find("%", field.end() + 1) + 1
    weight = budget.weigh(values).characters
    budget.afford(size + weight * (1 if isinstance(values, tuple) else fields))


def _after_key(text: str, at: int) -> int:
    """Return the end of the bracketed key that begins at `at`; the key may contain brackets."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0:
            return i + 1
    return len(text)


def _number(values: Any, width: str | None) -> int:
    if width == "*":
        integers = [abs(value) for value in values if isinstance(value, int)] if isinstance(values, tuple) else []
        return max(integers, default=0)
    return _width(width or "0")


def _width(digits: str) -> int:
    return int(digits[:18])


# methods of strings


def call_text_method(method: Callable[..., Any], text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a method of a string if its result fits the budget."""
    budget, name = current(), method.__name__
    budget.step(len(text) >> 12)
    guard = _TEXT_METHODS.get(name)
    if guard is not None:
        args = guard(budget, text, *args, **kwargs) or args
    for value in (*args, *kwargs.values()):
        if type(value) is not str:
            budget.examine(value)
    result = method(*args, **kwargs)
    if type(result) is list:
        budget.make(_PART * len(result))
        return result
    return made(result)


def _to_width(budget: Budget, _text: str, width: Any = 0, *_: Any) -> None:
    if isinstance(width, int):
        budget.afford(max(width, 0))


def _expand(budget: Budget, text: str, tabsize: Any = 8) -> None:
    if isinstance(tabsize, int):
        budget.afford(len(text) + text.count("\t") * max(tabsize, 0))


def _replace(budget: Budget, text: str, old: Any = "", new: Any = "", count: Any = -1) -> None:
    if isinstance(old, str) and isinstance(new, str):
        found = text.count(old)
        if isinstance(count, int) and 0 <= count < found:
            found = count
        budget.afford(len(text) + found * (len(new) - len(old)))


def _join(budget: Budget, text: str, items: Any = ()) -> tuple[Any, ...]:
    listed = [*Counted(items)]
    size = len(text) * len(listed)
    size += sum(len(item) for item in listed if isinstance(item, str))
    budget.afford(size)
    return (listed,)


def _translate(budget: Budget, text: str, table: Any = None) -> None:
    if isinstance(table, Mapping):
        longest = max((len(value) for value in table.values() if isinstance(value, str)), default=1)
        budget.step(len(table))
        budget.afford(len(text) * max(longest, 1))


def _split(budget: Budget, text: str, sep: Any = None, maxsplit: Any = -1) -> None:
    if isinstance(sep, str) and sep:
        n = text.count(sep)
    else:
        n = len(text) // 2
        if _PART * n > budget.characters:
            n = len(text.split(None, budget.characters // _PART + 1))
    if isinstance(maxsplit, int) and maxsplit >= 0:
        n = min(n, maxsplit)
    budget.afford(_PART * (n + 1))


def _split_lines(budget: Budget, text: str, *_: Any, **__: Any) -> None:
    if _PART * len(text) > budget.characters:
        budget.afford(_PART * _n_lines(text))


def _n_lines(text: str) -> int:
    """Return an upper bound of the number of lines that `splitlines` returns."""
    return 1 + sum(text.count(end) for end in "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")


def _strip(budget: Budget, text: str, chars: Any = None, *_: Any) -> None:
    if isinstance(chars, str):
        budget.step((len(text) * len(chars)) >> 12)


def _refuse_bytes(*_: Any, **__: Any) -> None:
    raise SecurityError("a template can't make bytes")


_TEXT_METHODS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _to_width),
        **dict.fromkeys(("strip", "lstrip", "rstrip"), _strip),
        **dict.fromkeys(("split", "rsplit"), _split),
        "splitlines": _split_lines,
        "expandtabs": _expand,
        "replace": _replace,
        "join": _join,
        "translate": _translate,
        "encode": _refuse_bytes,
    }
)


def check_method(name: str, owner: Any) -> None:
    """Refuse methods of integers that make bytes of any length; count the items that methods of containers examine."""
    if isinstance(owner, int) and name in ("to_bytes", "from_bytes"):
        _refuse_bytes()
    if isinstance(owner, list | tuple | range):
        current().step(len(owner))


# filters


def guarded_filters(filters: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """Return the filters, with a guard around each whose cost or result is not bounded."""
    return {
        name: call if name in CHEAP_FILTERS else _guarded(call, FILTER_GUARDS.get(name), whole=name in _WHOLE_FILTERS)
        for name, call in filters.items()
    }


def guarded_tests(tests: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tests with a guard around those that compare."""
    words = {"eq", "equalto", "ne", "lt", "lessthan", "le", "gt", "greaterthan", "ge", "in"}
    comparing = words | {"==", "!=", "<", "<=", ">", ">="}
    return {name: _guarded(call, None) if name in comparing else call for name, call in tests.items()}


CHEAP_FILTERS = frozenset(
    {"abs", "attr", "count", "d", "default", "filesizeformat", "first", "float", "last", "length", "random", "safe"}
)
"""Filters whose cost does not depend on the size of their arguments."""

_WHOLE_FILTERS = frozenset({"sum", "join"})
"""Filters whose guards must see all items at once."""


def _guarded(call: Callable[..., Any], guard: Guard | None, *, whole: bool = False) -> Callable[..., Any]:
    skipped = 1 if hasattr(call, "jinja_pass_arg") else 0

    @wraps(call)
    def run(*args: Any, **kwargs: Any) -> Any:
        value = args[skipped] if len(args) > skipped else None
        if type(value) is str and len(value) <= _SHORT and len(args) == skipped + 1 and not kwargs:
            return made(call(*args))  # without further arguments, the result of a short string is short
        budget, depth = current(), 0
        if type(value) not in _PLAIN and isinstance(value, Iterator):
            items = value if type(value) is Counted else Counted(value)
            depth = items.depth + 1
            args = (*args[:skipped], [*items] if whole else items, *args[skipped + 1 :])
        elif type(value) is not str and isinstance(value, range | list | tuple | Mapping):
            budget.step(STEPS_PER_ITEM * len(value))
        if guard is not _filter_tojson:
            for each in (*args[skipped:], *kwargs.values()):
                budget.examine(each)
        if guard is not None:
            guard(budget, *args[skipped:], **kwargs)
        result = call(*args, **kwargs)
        return Counted(result, depth) if isinstance(result, Iterator) else made(result)

    return run


def _filter_center(budget: Budget, value: Any, width: Any = 80) -> None:
    _to_width(budget, value, width)


def _filter_replace(budget: Budget, value: Any, old: Any, new: Any, count: Any = None) -> None:
    _replace(budget, str(value), str(old), str(new), -1 if count is None else count)


def _filter_format(budget: Budget, value: Any, *args: Any, **kwargs: Any) -> None:
    _check_percent(budget, str(value), kwargs or args)


def _filter_indent(budget: Budget, value: Any, width: Any = 4, *_: Any, **__: Any) -> None:
    size = len(width) if isinstance(width, str) else width
    if isinstance(value, str) and isinstance(size, int) and (1 + len(value)) * (1 + size) > budget.characters:
        budget.afford(len(value) + (1 + _n_lines(value)) * size)


def _filter_groups(budget: Budget, value: Any, n: Any, fill: Any = None) -> None:  # noqa: ARG001
    if isinstance(n, int | float) and n > _MAX_COUNT:
        raise Excess(f"it makes groups by {n:.0f}, more than {_MAX_COUNT}")


def _filter_round(budget: Budget, value: Any, precision: Any = 0, method: Any = "common") -> None:  # noqa: ARG001
    if isinstance(precision, int | float) and abs(precision) > _MAX_PRECISION:
        raise Excess(f"it rounds to more than {_MAX_PRECISION} digits")


def _filter_sum(budget: Budget, value: Any, attribute: Any = None, start: Any = 0) -> None:  # noqa: ARG001
    if isinstance(start, list | tuple) and isinstance(value, Sized):
        total = len(start) + budget.weigh(value).values
        budget.afford(4 * total * (len(value) + 1))


def _filter_sort(budget: Budget, value: Any, *_: Any, **__: Any) -> None:
    budget.step(16 * budget.weigh(value).values)


def _filter_striptags(budget: Budget, value: Any) -> None:
    text = str(value)
    budget.step((len(text) * text.count("<!--")) >> 12)
    budget.step(len(text) >> 4)


def _filter_slow(budget: Budget, value: Any, *args: Any, **kwargs: Any) -> None:
    """Guard filters that examine each character in Python, or insert constant text."""
    for each in (*args, *kwargs.values()):
        if isinstance(each, str) and len(each) > _MAX_ARGUMENT:
            raise Excess(f"an argument of a filter has {len(each)} characters, more than {_MAX_ARGUMENT}")
    n = budget.weigh(value).characters
    budget.step(n // 4)
    budget.afford(_PART // 2 * n)


def _filter_wordwrap(budget: Budget, value: Any, width: Any = 79, *args: Any, **kwargs: Any) -> None:
    _filter_slow(budget, value, *args, **kwargs)
    if isinstance(value, str) and isinstance(width, int):
        budget.step(len(value) ** 2 // max(width, 1) >> 8)
        wrapped = [each for each in (*args, *kwargs.values()) if isinstance(each, str)]
        budget.afford(len(value) * (1 + max(map(len, wrapped), default=1)))


def _filter_trim(budget: Budget, value: Any, chars: Any = None) -> None:
    _strip(budget, value if isinstance(value, str) else "", chars)


def _filter_list(budget: Budget, value: Any) -> None:
    if isinstance(value, str):
        budget.afford(len(value) * (8 if value.isascii() else _PART + 8))


def _filter_join(budget: Budget, value: Any, d: Any = "", attribute: Any = None) -> None:  # noqa: ARG001
    if isinstance(value, Sized):
        budget.afford(len(value) * len(str(d)))


def _filter_tojson(  # noqa: PLR0917
    budget: Budget,
    x: Any,
    ensure_ascii: bool = False,  # noqa: ARG001
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,  # noqa: ARG001
) -> None:
    if indent is None and separators is None:
        if not budget.is_given(x):  # usually a tool, whose size is bounded by the request
            budget.examine(x)
        return
    weight, width = budget.weigh(x), len(indent) if isinstance(indent, str) else indent
    if isinstance(width, int):
        if width > _MAX_INDENT:
            raise Excess(f"it indents JSON by {width}, more than {_MAX_INDENT}")
        budget.afford(weight.characters + weight.values * weight.depth * max(width, 0))
    if separators is not None and budget.weigh(separators).characters > _MAX_INDENT:
        raise Excess(f"it separates JSON by more than {_MAX_INDENT} characters")


FILTER_GUARDS: Mapping[str, Guard] = MappingProxyType(
    {
        **dict.fromkeys(("sort", "unique", "groupby", "dictsort", "min", "max"), _filter_sort),
        **dict.fromkeys(("pprint", "urlize", "title", "wordcount", "truncate", "xmlattr", "urlencode"), _filter_slow),
        **dict.fromkeys(("batch", "slice"), _filter_groups),
        "center": _filter_center,
        "format": _filter_format,
        "indent": _filter_indent,
        "join": _filter_join,
        "list": _filter_list,
        "replace": _filter_replace,
        "round": _filter_round,
        "striptags": _filter_striptags,
        "sum": _filter_sum,
        "tojson": _filter_tojson,
        "trim": _filter_trim,
        "wordwrap": _filter_wordwrap,
    }
)
"""Guards that run before a filter, in addition to the check of its arguments' size."""
