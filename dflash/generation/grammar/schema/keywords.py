"""Keywords of JSON Schema and their treatment in grammars. `docs/structured-output.md` shows the same table."""

from enum import Enum


class Handling(Enum):
    """Treatment of a keyword."""

    ENFORCED = "enforced"
    PASSES = "passes"
    """It is an annotation."""
    GIVEN_UP = "refused if strict, else noted"
    PARTLY = "enforced in some forms, else refused if strict or noted"
    IGNORED = "concerns other values"


ANNOTATIONS = frozenset(
    (
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "$comment",
        "$schema",
        "$id",
        "id",
    )
) | frozenset(("$anchor", "$vocabulary", "contentEncoding", "contentMediaType", "contentSchema", "$defs", "definitions"))
"""Keywords that no value breaks. Unknown keywords are annotations, too."""

_TEXT = {
    **dict.fromkeys(("type", "enum", "const", "pattern", "minLength", "maxLength", "format", "not"), Handling.ENFORCED),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "$ref", "if"), Handling.ENFORCED),
    "pattern": Handling.PARTLY,
    "minLength": Handling.PARTLY,
    "maxLength": Handling.PARTLY,
    "format": Handling.PARTLY,
}
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_INNER = ("properties", "required", "additionalProperties", "items", "prefixItems", "minItems", "maxItems")
_NEVER: tuple[str, ...] = ("contains", "minContains", "maxContains", "dependentRequired", "dependentSchemas", "dependencies")
_NEVER += ("unevaluatedItems", "$dynamicRef", "$recursiveRef")
_JSON = {
    **dict.fromkeys(("type", "enum", "const", "allOf", "anyOf", "$ref", "minLength", *_INNER), Handling.ENFORCED),
    **dict.fromkeys(("pattern", "format", "maxLength", "oneOf", *_NUMBERS, "patternProperties"), Handling.PARTLY),
    **dict.fromkeys(("propertyNames", "minProperties", "maxProperties", "unevaluatedProperties", "not"), Handling.PARTLY),
    **dict.fromkeys(("if", "uniqueItems", *_NEVER), Handling.GIVEN_UP),
}
TABLE = {
    keyword: (_TEXT.get(keyword, Handling.IGNORED), _JSON[keyword])
    for keyword in (*_TEXT, *(each for each in _JSON if each not in _TEXT))
} | dict.fromkeys(sorted(ANNOTATIONS), (Handling.PASSES, Handling.PASSES))
"""Handling of each keyword in the value of a text parameter, and in JSON: other parameters and `response_format`."""
