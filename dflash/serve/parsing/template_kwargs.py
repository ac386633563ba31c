"""Variables of the chat template that a request sets."""

from collections.abc import Mapping
from typing import Any

from dflash.serve.parsing.fields import Fields

_SWITCHES = ("enable_thinking", "preserve_thinking")
"""Variables of Qwen's chat templates that some clients send at the top of the body."""


def parse_template_kwargs(fields: Fields, defaults: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Read ``chat_template_kwargs`` and the switches beside it.

    Parameters
    ----------
    defaults : mapping
        Variables that other fields of the API set; the fields read here take precedence.

    Returns
    -------
    mapping or None
        None if there are none.

    Raises
    ------
    FieldError
        If a field is of the wrong kind.
    """
    kwargs = fields.object("chat_template_kwargs")
    if kwargs and "tools" in kwargs.values:
        raise kwargs.error("tools", "belongs at the top of the body")
    if kwargs:
        list(kwargs.objects("documents"))
    switches = {name: fields.flag(name) for name in _SWITCHES if fields.any(name) is not None}
    return {**defaults, **switches, **(kwargs.values if kwargs else {})} or None
