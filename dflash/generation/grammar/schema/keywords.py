"""Keywords of JSON Schema and their treatment in grammars. The table of `docs/structured-output.md` is made from this."""

from collections.abc import Iterable
from enum import Enum


class Handling(Enum):
    """Treatment of a keyword: in strict schemas, and in others."""

    ENFORCED = "enforced", "enforced"
    PARTLY = "enforced or refused", "enforced or noted"
    GIVEN_UP = "refused", "noted"
    PASSES = "passes", "passes"
    OTHER = "", ""
    """It concerns values of other types."""


def _rows(text: Handling, value: Handling, keywords: str) -> Iterable[tuple[str, tuple[Handling, Handling]]]:
    return [(keyword, (text, value)) for keyword in keywords.split()]


_ENFORCED, _PARTLY, _GIVEN_UP, _PASSES, _OTHER = Handling
TABLE = dict(
    (
        *_rows(_ENFORCED, _ENFORCED, "type enum const allOf anyOf"),
        *_rows(_PARTLY, _PARTLY, "oneOf $ref pattern format minLength maxLength"),
        *_rows(_PARTLY, _GIVEN_UP, "not if"),
        *_rows(_OTHER, _ENFORCED, "properties required additionalProperties items prefixItems minItems maxItems"),
        *_rows(_OTHER, _PARTLY, "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf patternProperties"),
        *_rows(_OTHER, _PARTLY, "propertyNames minProperties maxProperties unevaluatedProperties"),
        *_rows(_OTHER, _GIVEN_UP, "uniqueItems contains dependentRequired dependentSchemas dependencies unevaluatedItems"),
        *_rows(_GIVEN_UP, _GIVEN_UP, "$dynamicRef $recursiveRef"),
        *_rows(_PASSES, _PASSES, "title description default examples deprecated readOnly writeOnly nullable $comment"),
        *_rows(_PASSES, _PASSES, "$schema $id $anchor $defs definitions contentEncoding contentMediaType contentSchema"),
    )
)
"""Handling of each keyword in a text parameter, and in JSON: other parameters and `response_format`."""


def markdown() -> str:
    """Return the table; rows of equal handling are joined."""
    groups: dict[tuple[Handling, Handling], list[str]] = {}
    for keyword, handling in TABLE.items():
        groups.setdefault(handling, []).append(f"`{keyword}`")
    columns = "keywords", "text, strict", "text, not strict", "JSON, strict", "JSON, not strict"
    lines = [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    for (text, value), keywords in groups.items():
        lines.append(f"| {', '.join(keywords)} | {' | '.join((*text.value, *value.value))} |")
    return "\n".join(lines)
