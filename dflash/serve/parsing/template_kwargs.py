"""Variables of the chat template that a request sets."""

from dflash.generation.messages.fields import Fields, shown
from dflash.json_types import JsonMapping

_SWITCHES = ("enable_thinking", "preserve_thinking")
"""Variables of Qwen's chat templates that some clients send at the top of the body."""

_BOOLEANS = (*_SWITCHES, "thinking", "add_generation_prompt", "continue_final_message")
"""Variables that are true or false. Templates compare them with these, so that 0 would count as true."""

_SPELLED = ("true", "false")


def parse_template_kwargs(fields: Fields, defaults: JsonMapping) -> JsonMapping | None:
    """Read ``chat_template_kwargs`` and the switches beside it."""
    kwargs = fields.object("chat_template_kwargs")
    if kwargs and "tools" in kwargs.values:
        raise kwargs.error("tools", "belongs at the top of the body")
    if kwargs:
        list(kwargs.objects("documents"))
        _check_booleans(kwargs)
    documents = [document.values for document in fields.objects("documents")]
    switches = {name: fields.flag(name) for name in _SWITCHES if fields.any(name) is not None}
    given = {**({"documents": documents} if documents else {}), **(kwargs.values if kwargs else {})}
    return {**defaults, **switches, **given} or None


def _check_booleans(kwargs: Fields) -> None:
    for name, value in kwargs.values.items():
        is_spelled = isinstance(value, str) and value.strip().lower() in _SPELLED
        if is_spelled or (name in _BOOLEANS and not isinstance(value, bool | None)):
            raise kwargs.error(name, f"must be true or false, got {shown(value)}")
