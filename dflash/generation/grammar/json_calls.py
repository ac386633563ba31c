"""Grammar of tool calls as JSON objects, in the form of Hermes and Qwen3."""

from collections.abc import Sequence

from dflash.generation.grammar.functions import Function
from dflash.generation.grammar.lark import json_rule, quoted


def json_body(functions: Sequence[Function], *, lenient: bool) -> list[str]:
    """Return the rules of ``body``, the text between ``<tool_call>`` and ``</tool_call>``; see `xml_body` for parameters."""
    rules = [f"body: {' | '.join(f'f{i}' for i in range(len(functions)))}"]
    for i, function in enumerate(functions):
        head = quoted(f'\n{{"name": {quoted(function.name)}, "arguments": ')
        value = json_rule(function.parameters, lenient=lenient and not function.strict)
        rules += [f"f{i}: {head} a{i} {quoted('}' + chr(10))}", f"a{i}: {value}"]
    return rules
