"""Jinja environment for chat templates, compatible with Transformers; templates are untrusted code."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEscapeFormatter, SandboxedFormatter
from jinja2.utils import Namespace
from markupsafe import Markup

from dflash.model.text.template_budget import current
from dflash.model.text.template_code import CountingCodeGenerator
from dflash.model.text.template_guards import (
    guarded,
    guarded_filters,
    guarded_tests,
    limit_widths,
    made,
    minus,
    percent,
    power,
    times,
)

MAX_TIME_FORMAT = 1000
"""Most characters of a format string for ``strftime_now``."""

_CHUNKS = 1000
"""Pieces of output joined before their characters are counted."""

_REMEMBERED = 1000
"""Most cached answers about attributes that are safe."""

_MANY = 100
"""Arguments of a call beyond which their number is counted as steps."""

_DICT_ATTRIBUTES = frozenset(dir(dict))
_SCOPES = ("_loop_vars", "_block_vars")


class Refusal(TemplateError):
    """The template called ``raise_exception``."""


class GenerationTag(Extension):
    """The block ``{% generation %}``, which marks text written by the model and does not change it."""

    tags: set[str] = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> nodes.CallBlock:
        """Convert the block to a call, so that its variables are local, as in Transformers."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        block = nodes.CallBlock(self.call_method("_text"), [], [], body)
        block.set_lineno(line)
        return block

    def _text(self, caller: Callable[[], str]) -> str:
        return caller()


class PlainNamespace(Namespace):
    """Jinja's ``namespace`` without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, args = args[0], args[1:]
        attributes = dict(*args, **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: object) -> None:
        _check_name(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        # without attributes: the text of namespaces that refer to each other would be unbounded
        return "<Namespace>"


class PlainDict:
    """``dict`` as a function, without the attributes of the type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict:
        """Make a dictionary."""
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict:
        """Make a dictionary of one value."""
        return dict.fromkeys(*args, **kwargs)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox that also bounds time, memory and output.

    Every operation that can loop or create large values is counted against a budget. Templates must be compiled and rendered
    inside `template_budget.spending`. The generated code calls `step`, `made`, `examined`, `printed` and `joined`.
    """

    code_generator_class = CountingCodeGenerator
    intercepted_binops = frozenset({"+", "-", "*", "**", "%"})
    made = staticmethod(made)

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.binop_table.update(
            {"+": lambda left, right: made(left + right), "-": minus, "*": times, "**": power, "%": percent}
        )
        self._safe: dict[tuple[type, str], bool] = {}

    def getattr(self, obj: object, attribute: str) -> Any:
        """Look up an attribute or item, with a fast path for the fields of a message."""
        if type(obj) is dict and attribute not in _DICT_ATTRIBUTES:
            try:
                return obj[attribute]
            except KeyError:
                return self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        """Return whether a template may read an attribute; cached, since the answer depends on the type alone."""
        key = type(obj), attr
        safe = self._safe.get(key)
        if safe is None:
            safe = super().is_safe_attribute(obj, attr, value)
            if len(self._safe) < _REMEMBERED:
                self._safe[key] = safe
        return safe

    @staticmethod
    def step(n: int) -> bool:
        """Count `n` steps and return True, so that a condition can begin with this call."""
        current().step(n)
        return True

    @staticmethod
    def examined(value: object) -> Any:
        """Count the cost of comparing, searching or hashing a value; return the value."""
        current().examine(value)
        return value

    @staticmethod
    def printed(value: object) -> Any:
        """Count the text of a value that is printed, and return the value; `concat` counts strings."""
        if not isinstance(value, str):
            current().examine(value)
            current().make(current().weigh(value).characters)
        return value

    @staticmethod
    def joined(value: object) -> Any:
        """Count the text of an operand of ``~`` and return the operand."""
        current().make(len(value)) if isinstance(value, str) else BoundedEnvironment.printed(value)
        return value

    @staticmethod
    def concat(chunks: Iterable[str]) -> str:
        """Join the pieces of the output, counting their characters as they are generated."""
        parts, chunks = [], iter(chunks)
        while some := list(islice(chunks, _CHUNKS)):
            current().make(sum(map(len, some)))
            parts += some
        return "".join(parts)

    def call(__self, __context: Context, __callable: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call an object from a template; parameter names are those of the base class, so that keywords can't collide."""
        if len(args) > _MANY:
            current().step(len(args))
        if type(__callable) is Macro:
            return __context.call(__callable, *args, **kwargs)
        scope = {name: kwargs.pop(name) for name in _SCOPES if name in kwargs}
        owner = getattr(__callable, "__self__", None)
        call = partial(super().call, __context, __callable, **scope)
        if isinstance(owner, str | int | list | tuple | range):
            return guarded(__callable.__name__, lambda _, *args, **kwargs: call(*args, **kwargs), (owner, *args), kwargs)
        return guarded("", call, args, kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return a bounded replacement for ``format`` or ``format_map`` of a string; None for any other value."""
        if super().wrap_str_format(value) is None:
            return None
        text = value.__self__
        format = BoundedFormatter(self).vformat  # noqa: A001
        if isinstance(text, Markup):
            format = BoundedEscapeFormatter(self, escape=text.escape).vformat  # noqa: A001
        if value.__name__ == "format_map":
            return lambda mapping: type(text)(format(text, (), mapping))
        return lambda *args, **kwargs: type(text)(format(text, args, kwargs))


class BoundedFormatter(SandboxedFormatter):
    """``str.format`` with bounded widths; the characters of each field are counted."""

    def convert_field(self, value: Any, conversion: Any) -> Any:
        """Count the size of a field that ``!r`` or ``!s`` converts."""
        current().examine(value)
        return super().convert_field(value, conversion)

    def format_field(self, value: object, format_spec: str) -> str:
        """Format one field."""
        limit_widths(format_spec)
        current().examine(value)
        return made(super().format_field(value, format_spec))


class BoundedEscapeFormatter(BoundedFormatter, SandboxedEscapeFormatter):
    """`BoundedFormatter` for text that is marked as HTML."""


def environment() -> BoundedEnvironment:
    """Make an environment that renders as ``apply_chat_template`` of Transformers 5 does.

    Returns: trims blocks; has loop controls, ``generation``, ``raise_exception``, ``strftime_now`` and a ``tojson`` that
        keeps the order of keys and does not escape HTML. Jinja's ``lipsum`` is removed.
    """
    extensions = [GenerationTag, loopcontrols]
    # optimized, a constant expression that makes a long list would be part of the code, which makes it anew without a count
    sandbox = BoundedEnvironment(optimized=False, trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    sandbox.filters["tojson"] = _tojson
    sandbox.filters = guarded_filters(sandbox.filters)
    sandbox.tests = guarded_tests(sandbox.tests)
    del sandbox.globals["lipsum"]
    sandbox.globals.update(
        raise_exception=_raise_exception, strftime_now=_strftime_now, dict=PlainDict(), namespace=PlainNamespace
    )
    return sandbox


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace can't hold {name!r}, which begins with an underscore")


def _raise_exception(message: str) -> NoReturn:
    raise Refusal(message)


def _strftime_now(format: str) -> str:  # noqa: A002
    if len(format) > MAX_TIME_FORMAT:
        raise ValueError(f"the format of strftime_now has {len(format)} characters, must have at most {MAX_TIME_FORMAT}")
    return datetime.now().strftime(format)


def _tojson(
    x: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
