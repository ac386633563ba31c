"""Pieces of Lark grammars."""

import json
import re
from collections.abc import Mapping
from typing import Any

_SPACE = r"( |\n[ \t]{0,32})?"
"""White space between the parts of JSON. It is bounded: small models repeat line breaks without end otherwise."""


def quoted(text: str) -> str:
    """Return a string of Lark that matches exactly this text; the empty text matches as an empty group."""
    return json.dumps(text) if text else '""'


def pattern_of(text: str) -> str:
    """Return a regular expression, as it stands between slashes, that matches exactly this text."""
    return re.sub(r"([^\w\s<>=\"'%@,:;!]|/)", r"\\\1", text)


def json_rule(schema: Any, *, lenient: bool = False) -> str:
    """Return an expression that matches JSON values of a schema.

    Parameters
    ----------
    lenient : bool
        Ignore keywords that llguidance can't enforce; otherwise they are an error.
    """
    if schema is True:
        schema = {}
    if isinstance(schema, Mapping):
        schema = {**schema, "x-guidance": {"whitespace_pattern": _SPACE, "lenient": lenient}}
    return f"%json {json.dumps(schema)}"
