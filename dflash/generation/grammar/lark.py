"""Pieces of Lark grammars."""

import json
import re
from collections.abc import Mapping

_SPACE = r"( |\n[ \t]{0,32})?"
"""White space between the parts of JSON. It is bounded: small models repeat line breaks without end otherwise."""


_UNFORCED = '\n%llguidance {"no_forcing": true}\n'
"""Stands at the end, so that errors name the right line; the last of several wins."""


def quoted(text: str) -> str:
    """Return a string of Lark that matches exactly this text; the empty text matches as an empty group."""
    return json.dumps(text) if text else '""'


def without_forcing(source: str) -> str:
    """Return a grammar that llguidance follows byte by byte, also where only one text can follow.

    Where a terminal takes all text that the next one needs, as ``A: "a"+`` in ``start: A A``, the only text that can follow
    has no end, and the library would not return.
    """
    if not source.lstrip().startswith("{"):
        return source + _UNFORCED
    try:
        form = json.loads(source)
        for one in form["grammars"]:
            if one.get("lark_grammar") is not None:
                one["lark_grammar"] += _UNFORCED
        return json.dumps(form)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return source  # refused by the bounds or by the library


def pattern_of(text: str) -> str:
    """Return a regular expression, as it stands between slashes, that matches exactly this text."""
    return re.sub(r"([^\w\s<>=\"'%@,:;!]|/)", r"\\\1", text)


def json_rule(schema: object) -> str:
    """Return an expression that matches JSON values of a schema."""
    if schema is True:
        schema = {}
    if isinstance(schema, Mapping):
        schema = {**schema, "x-guidance": {"whitespace_pattern": _SPACE, "lenient": False}}
    return f"%json {json.dumps(schema)}"
