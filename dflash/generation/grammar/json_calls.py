"""Grammar of tool calls whose arguments are JSON."""

from collections.abc import Sequence

from dflash.generation.grammar.call_form import CallForm, TokenOf
from dflash.generation.grammar.functions import Function
from dflash.generation.grammar.json_rules import JSONRules
from dflash.generation.grammar.schema.plain import PlainSchemas
from dflash.generation.grammar.schema.policy import Notes, Policy

_PARTS = {"$ref", "allOf", "anyOf", "oneOf"}


def json_body(functions: Sequence[Function], notes: Notes, form: CallForm, token_of: TokenOf) -> list[str]:
    """Return the rules of ``body``, a call up to the end of its arguments; see `xml_body` for the other parameters."""
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
        rules.append(f"f{i}: {form.before(function.name, token_of)} {value}")
    return [*rules, *values.rules]
