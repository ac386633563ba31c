"""The Jinja that chat templates are written for: that of Transformers, which runs them as untrusted code."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


class Refusal(TemplateError):
    """The template called ``raise_exception``."""


class Generation(Extension):
    """``{% generation %}``, which marks what the model wrote and leaves the text alone."""

    tags = frozenset({"generation"})

    def parse(self, parser: Parser) -> nodes.CallBlock:
        """Turn the block into a call, whose variables stay inside as they do in Transformers."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

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

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


class PlainDict:
    """``dict`` as a function, without the attributes of the type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict:
        """Make a dictionary."""
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict:
        """Make a dictionary of one value."""
        return dict.fromkeys(*args, **kwargs)


def environment() -> ImmutableSandboxedEnvironment:
    """Make an environment that renders as ``apply_chat_template`` of Transformers 5 does.

    Returns
    -------
    ImmutableSandboxedEnvironment
        Trims blocks, knows loop controls, ``generation``, ``raise_exception``, ``strftime_now`` and a ``tojson``
        that keeps the order of keys and does not escape HTML.
    """
    sandbox = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    sandbox.filters["tojson"] = _tojson
    sandbox.globals.update(
        raise_exception=_raise_exception, strftime_now=_strftime_now, dict=PlainDict(), namespace=PlainNamespace
    )
    return sandbox


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace can't hold {name!r}, which begins with an underscore")


def _raise_exception(message: str) -> NoReturn:
    raise Refusal(message)


def _strftime_now(format: str) -> str:  # noqa: A002
    return datetime.now().strftime(format)


def _tojson(
    x: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
