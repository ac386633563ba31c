"""Grammars, schemas and patterns that are too large or match nothing are refused before the library sees them."""

import json
import random

import pytest

from dflash.errors import RequestError
from dflash.generation.grammar.bounds.grammars import check_grammar
from dflash.generation.grammar.bounds.graph import RuleGraph
from dflash.generation.grammar.bounds.patterns import check_pattern
from dflash.generation.grammar.bounds.schemas import check_references
from dflash.generation.grammar.limits import MAX_CHAIN, MAX_GRAMMAR_PARTS, MAX_PATTERN, MAX_QUANTIFIERS, MAX_WRITTEN


def definitions(link, n):
    """Definitions that refer to each other in a row."""
    return {f"a{i}": link({"$ref": f"#/$defs/a{i + 1}"}) for i in range(n)} | {f"a{n}": {"type": "string"}}


LINKS = {
    "$ref": lambda to: to,
    "items": lambda to: {"type": "array", "items": to},
    "allOf": lambda to: {"allOf": [to]},
    "anyOf": lambda to: {"anyOf": [{"type": "null"}, to]},
    "properties": lambda to: {"type": "object", "properties": {"x": to}},
    "additionalProperties": lambda to: {"additionalProperties": to},
    "prefixItems": lambda to: {"prefixItems": [to]},
    "not": lambda to: {"not": to},
}


@pytest.mark.parametrize("link", LINKS.values(), ids=LINKS)
def test_chains_of_references(link):
    for n, fine in ((300, True), (MAX_CHAIN, False)):
        schema = {"$ref": "#/$defs/a0", "$defs": definitions(link, n)}
        if fine:
            check_references(schema)
        else:
            with pytest.raises(RequestError, match=f"^references lead through [0-9]+ parts .* at most {MAX_CHAIN}"):
                check_references(schema)


def test_chains_of_rules():
    for n, fine in ((MAX_CHAIN - 2, True), (MAX_CHAIN + 1, False)):
        for form in ("r{i}: r{j}", "r{i}: ( /x/ | r{j} )+", 'r{i}: "a" r{j} "b"', "?r{i}[lazy]: r{j}?"):
            rules = [form.format(i=i, j=i + 1) for i in range(n)]
            source = "\n".join(("start: r0", *rules, f'r{n}: "a"'))
            if fine:
                check_grammar(source)
            else:
                with pytest.raises(RequestError, match=f"^rules lead through [0-9]+ others in a row, at most {MAX_CHAIN}"):
                    check_grammar(source)


def test_many_rules_and_definitions_in_no_row_are_fine():
    check_grammar("\n".join(("start: " + " | ".join(f"r{i}" for i in range(3000)), *(f'r{i}: "{i}"' for i in range(3000)))))
    check_references(
        {"anyOf": [{"$ref": f"#/$defs/d{i}"} for i in range(3000)], "$defs": {f"d{i}": {"const": i} for i in range(3000)}}
    )


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("a" * (MAX_PATTERN + 1), f"has {MAX_PATTERN + 1} characters, at most {MAX_PATTERN}"),
        ("a?" * (MAX_QUANTIFIERS + 1), f"has {MAX_QUANTIFIERS + 1} quantifiers, at most {MAX_QUANTIFIERS}"),
        ("((a{1000}){1000}){1000}", f"write out 1000000000 characters, at most {MAX_WRITTEN}"),
        ("(x(a{3,1000}|b){0,500}y)", f"write out 501002 characters, at most {MAX_WRITTEN}"),
        ("(?:[a-z]{400,}){400}", f"write out 160000 characters, at most {MAX_WRITTEN}"),
        ("a{99999999999}", f"write out 1000000000 characters, at most {MAX_WRITTEN}"),
        ("a{10}{100}{1000}", f"write out 1000000 characters, at most {MAX_WRITTEN}"),
        ("(a{200}){200}" * 3, f"write out 120000 characters, at most {MAX_WRITTEN}"),
        ("(a{1000}){1000}", f"write out 1000000 characters, at most {MAX_WRITTEN}"),
    ],
)
def test_refused_patterns_wherever_they_stand(pattern, message):
    with pytest.raises(RequestError, match=message):
        check_pattern(pattern)
    with pytest.raises(RequestError, match=message):
        check_grammar(f"start: T\nT: /{pattern}/")
    with pytest.raises(RequestError, match=f"^/properties/a~1b/pattern: .*{message}"):
        check_references({"properties": {"a/b": {"type": "string", "pattern": pattern}}})
    with pytest.raises(RequestError, match=f"^/items/patternProperties: .*{message}"):
        check_references({"items": {"patternProperties": {pattern: True}}})
    with pytest.raises(RequestError, match=message):
        check_grammar("start: x\nx: %json " + json.dumps({"pattern": pattern}))


@pytest.mark.parametrize(
    "pattern",
    ["a{1000}b{1000}" * 20, r"[a{1000}]{300}", r"\{1000\}{1000}", "(a{30}|b{20}){40}", "x{0,}", "(" * 3000, "[" * 3000, ""],
)
def test_patterns_that_are_small_enough(pattern):
    check_pattern(pattern)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"properties": {"x": {"$ref": "#/$defs/A"}}}, "^/properties/x: .*only to itself"),
        ({"items": {"items": {"$ref": "#/$defs/B"}}}, "^/items/items: .*only to itself"),
        ({"$ref": "#/$defs/C"}, "^/: .*only to itself"),
        ({"additionalProperties": {"allOf": [{}, {"$ref": "#/$defs/A"}]}}, "^/additionalProperties: .*only to itself"),
        ({"$ref": "#/$defs/list"}, "^no value of finite length"),
        ({"type": "array", "minItems": 1, "items": {"$ref": "#"}}, "^no value of finite length"),
        ({"patternProperties": {f"a{i}": True for i in range(99)}}, "^/patternProperties: has 99 patterns, at most"),
        ({"properties": {"n": {"multipleOf": 99999989}}}, "^/properties/n/multipleOf: is 1e[+]08, at most"),
        (
            {"anyOf": [{"const": i} for i in range(MAX_GRAMMAR_PARTS + 1)]},
            f"^the schema has more than {MAX_GRAMMAR_PARTS} parts",
        ),
    ],
)
def test_unbounded_schemas_are_refused(schema, message):
    shared = {
        "A": {"$ref": "#/$defs/A"},
        "B": {"oneOf": [{"$ref": "#/$defs/C"}]},
        "C": {"allOf": [{"$ref": "#/$defs/B"}, {"type": "string"}]},
        "list": {"type": "object", "properties": {"next": {"$ref": "#/$defs/list"}}, "required": ["next"]},
    }
    with pytest.raises(RequestError, match=message):
        check_references(schema | {"$defs": shared})
    with pytest.raises(RequestError, match=message.replace("^", "")):
        check_grammar("start: x\nx: %json " + json.dumps(schema | {"$defs": shared}))


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}},
        {"type": "object", "properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}}, "required": ["next"]},
        {"$defs": {"unused": {"$ref": "#/$defs/unused"}}, "type": "string"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "string"}]}}},
        {"properties": {"list": {"type": "array", "items": {"$ref": "#/properties/item"}}, "item": {"enum": [1]}}},
        {"required": "not a list", "properties": [], "items": 3, "$ref": 5, "anyOf": {}, "allOf": "x", "type": ["object"]},
        {"$ref": "https://example.com/other"},
        {"$ref": "#/prefixItems/7", "prefixItems": [True]},
        True,
        False,
    ],
)
def test_schemas_that_are_left_to_the_library(schema):
    check_references(schema)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ('start: "a" b\nb: b', "b"),
        ('start: "a" b?\nb: "x" c\nc: (b | "y" c) "z"', "c"),
        ('start: "a" (b | "c")\nb: b+', "b"),
    ],
)
def test_rules_that_match_nothing(source, name):
    with pytest.raises(RequestError, match=f"no output matches rule '{name}', which leads only into itself"):
        check_grammar(source)


@pytest.mark.parametrize(
    "source",
    [
        'start: e\ne: e "+" t | t\nt: /[0-9]+/ | "(" e \')\' ',
        'start: a*\na: "x" a | "x" b{0,3}\nb: [a] "y"',
        "start: A\nA: /a/ & ~B\nB: /b/i\nunused: unused",
        'start: a::0\na::_: "x" | b\nb: "y" -> a',
        "%import common.INT\nstart: INT // a: a\n%ignore / /",
        'start: %regex {"pattern": "a: b"} x\nx: "\\nb: b" <|end|> <[5]>',
        '{"grammars": [{"lark_grammar": "start: /a/"}, {"json_schema": {"type": "string"}}, 3]}',
        "nonsense ((( ]]] \\ /",
    ],
)
def test_grammars_that_are_left_to_the_library(source):
    check_grammar(source)


def test_too_many_parts_of_a_grammar():
    for text in ("( " * (MAX_GRAMMAR_PARTS + 1), "| " * (MAX_GRAMMAR_PARTS + 1), '"a" ' * (MAX_GRAMMAR_PARTS + 1)):
        with pytest.raises(RequestError, match=f"has more than {MAX_GRAMMAR_PARTS} names, signs and texts"):
            check_grammar(f"start: {text}")


def longest(node, circles, parts):
    beyond = {part for each in circles[node] for part in parts[each]} - circles[node]
    return len(circles[node]) + max((longest(part, circles, parts) for part in beyond), default=0)


def test_dead_nodes_and_chains_of_random_graphs():
    """Against definitions that are slow and obvious."""
    rng = random.Random(3)
    for _ in range(150):
        n = rng.randint(1, 9)
        graph, parts = RuleGraph(), []
        for i in range(n):
            graph.add(str(i), any_of=rng.random() < 0.5)
        for node in range(n):
            parts.append(rng.sample(range(n), rng.randint(1, min(3, n))))
            for part in parts[node]:
                graph.link(node, part)
        alive = set()
        for _ in range(n):
            alive |= {i for i in range(n) if (any if graph._any[i] else all)(part in alive for part in parts[i])}
        assert graph.dead(inner=False) == set(range(n)) - alive
        circles = {i: {j for j in graph.reached(i) if i in graph.reached(j)} for i in range(n)}

        assert graph.longest_chain(0) == longest(0, circles, parts)
