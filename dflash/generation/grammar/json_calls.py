"""Grammar of tool calls as JSON objects, in the form of Hermes and Qwen3."""

from collections.abc import Sequence

from dflash.generation.grammar.functions import Function
from dflash.generation.grammar.json_rules import JSONRules
from dflash.generation.grammar.lark import quoted
from dflash.generation.grammar.schema.plain import PlainSchemas
from dflash.generation.grammar.schema.policy import Notes, Policy

_PARTS = {"$ref", "allOf", "anyOf", "oneOf"}


def json_body(functions: Sequence[Function], notes: Notes) -> list[str]:
    """Return the rules of ``body``, the text between ``<tool_call>`` and ``</tool_call>``; see `xml_body` for parameters."""
    values = JSONRules()
    rules = [f"body: {' | '.join(f'f{i}' for i in range(len(functions)))}"]
    for i, function in enumerate(functions):
        policy = Policy(f"tools: {function.name}", strict=function.strict, notes=notes)
        plain = PlainSchemas(function.parameters, policy)
        schema = plain.reduced(function.parameters, "")
        assert isinstance(schema, dict), "the parameters are an object"
        if not _PARTS & set(schema):  # no parameters but the declared ones, unless the schema says so
            schema = {"additionalProperties": function.parameters.get("additionalProperties") is True, **schema}
        value = values.add(policy.name, plain, {**schema, "type": "object"})
        head = quoted(f'\n{{"name": {quoted(function.name)}, "arguments": ')
        rules.append(f"f{i}: {head} {value} {quoted('}' + chr(10))}")
    return [*rules, *values.rules]
