"""Text of clients is read in linear time: every regular expression, converter and loop, at n and at 4 n."""

import ast
import json
from pathlib import Path

import patterns_in_use
import pytest
from demo_text import DATA, demo_tokenizer
from linear_work import check_linear
from python_run import run_python

import dflash
from dflash.generation.grammar.bounds.grammars import check_grammar
from dflash.generation.grammar.bounds.patterns import check_pattern
from dflash.generation.grammar.bounds.schemas import check_references
from dflash.generation.grammar.gbnf import is_gbnf, lark_of
from dflash.generation.grammar.params import check_schema
from dflash.generation.parsers import OutputFormat
from dflash.model.text.chat_template import ChatTemplate
from dflash.serve.anthropic.dialect import MessagesDialect
from dflash.serve.limits import Limits
from dflash.serve.openai.dialects import ChatCompletions, Completions
from dflash.serve.parsing.body import parse_json
from dflash.serve.parsing.session_id import session_id
from dflash.serve.preparing.completions import ReadRequest
from dflash.serve.responses.dialect import ResponsesDialect

ROOT = Path(dflash.__file__).parent
TEMPLATE = ChatTemplate((DATA / "demo" / "chat_template.jinja").read_text(encoding="utf-8"), tokens={})


def test_every_regular_expression_takes_linear_time():
    """One that is new is found by the walk over the source: it must have run, or stand in a folder of bounded names."""
    found = json.loads(run_python(patterns_in_use.__file__).stdout)
    assert found["slow"] == {}
    recorded = {(where.rsplit(":", 1)[0], int(where.rsplit(":", 1)[1])) for where in found["recorded"]}
    missing = []
    for path in ROOT.rglob("*.py"):
        name = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            function = node.func if isinstance(node, ast.Call) else None
            if not isinstance(function, ast.Attribute) or getattr(function.value, "id", None) != "re":
                continue
            lines = range(node.lineno, node.end_lineno + 1)
            is_use = function.attr in patterns_in_use.METHODS and not patterns_in_use.bounded(name)
            if is_use and not any((name, line) in recorded for line in lines):
                missing.append(f"{name}:{node.lineno}")
    assert missing == [], "give each text to try in patterns_in_use.use_all"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda text: [other for other in text for _ in text], "loops"),
        (lambda text: [text.count("b") for _ in range(0, len(text), 50)], "in C"),
    ],
)
def test_quadratic_work_is_found(function, message):
    with pytest.raises(AssertionError, match=message):
        check_linear(function, "a".__mul__, 100, long=1 << 18, seconds=0.01)


def json_rule(schema):
    return "start: x\nx: %json " + json.dumps(schema)


GRAMMARS = {
    "line breaks": lambda n: "start: a" + "\n" * 20 * n + "::=",
    "blank lines": lambda n: "start: a" + "\n \t" * 10 * n + "::=",
    "quotes": lambda n: 'start: "' + '\\"' * 20 * n,
    "slashes": lambda n: "start: /" + "\\/" * 2 * n,
    "brackets": lambda n: "start: " + "(" * 2 * n,
    "groups": lambda n: "start: " + '("a" | b) ' * n + "\nb: /b/",
    "bars": lambda n: "start: " + "|" * 2 * n,
    "heads": lambda n: "a[" * 4 * n + "\n" + "b: \n" * n,
    "rules": lambda n: "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(n)) + f'\nr{n}: "a"',
    "circle": lambda n: "start: r0\n" + "\n".join(f'r{i}: "a" r{(i + 1) % n} | "b"' for i in range(n)),
    "all to one": lambda n: "start: " + " ".join(f"r{i}" for i in range(n)) + "".join(f"\nr{i}: r0 | /x/" for i in range(n)),
    "schemas": lambda n: "start: x" + "".join(f'\nr{i}: %json {{"type": "string"}}' for i in range(n)),
    "definitions": lambda n: json_rule(
        {
            "$ref": "#/$defs/a0",
            "$defs": {f"a{i}": {"items": {"$ref": f"#/$defs/a{i + 1}"}} for i in range(n)} | {f"a{n}": {}},
        }
    ),
    "one definition": lambda n: json_rule({"anyOf": [{"$ref": "#/$defs/a"}] * n, "$defs": {"a": {}}}),
    "a long path": lambda n: json_rule({"$ref": "#" + "/a" * n}),
    "properties": lambda n: json_rule({"type": "object", "properties": {f"k{i}": {} for i in range(n)}, "required": ["k0"]}),
}


@pytest.mark.parametrize("text_of", GRAMMARS.values(), ids=GRAMMARS)
def test_checks_of_grammars(text_of):
    check_linear(lambda text: (is_gbnf(text), check_grammar(text)), text_of, 500)


GBNF = {
    "chain": lambda n: "root ::= a0\n" + "\n".join(f"a{i} ::= a{i + 1}" for i in range(n)) + f'\na{n} ::= "x"',
    "comments": lambda n: "root ::= a\n" + "#\n" * n + 'a ::= "x"',
    "long comment": lambda n: "root ::= a\n#" + '"[' * n + '\na ::= "x"',
    "line breaks": lambda n: "root ::= a" + "\n" * 2 * n,
    "alternatives": lambda n: "root ::= " + '"x" | [a-z]+ | ' * n + '"y"',
    "open quote": lambda n: 'root ::= "' + '\\"' * n,
    "open class": lambda n: "root ::= " + "[" * n,
    "names": lambda n: "root ::= " + "fooBar" * n,
    "unknown names": lambda n: "root ::= " + "foo " * n,
    "repeated": lambda n: 'root ::= "a"' + "*" * n + "{1}" * n,
    "tokens": lambda n: "root ::= " + "<[1]> !<[2]> <" * n,
}


@pytest.mark.parametrize("text_of", GBNF.values(), ids=GBNF)
def test_conversion_of_gbnf(text_of):
    check_linear(lambda text: (is_gbnf(text), lark_of(text)), text_of, 200)


@pytest.mark.parametrize("pump", ["a?", "(", ")", "[", "]", "{1", "{1,2}", "{", "\\", "(a", "a|", "x{9}"])
def test_checks_of_patterns(pump):
    check_linear(lambda text: [check_pattern(text) for _ in range(5)], lambda n: (pump * n)[: n * 2], 900)


def test_checks_of_schemas():
    check_linear(lambda schema: check_schema("x", schema), lambda n: {"enum": [[i] for i in range(n)]}, 1000)
    check_linear(check_references, lambda n: {"allOf": [{"pattern": f"a{i}"} for i in range(n)]}, 500)


USER = {"role": "user", "content": "Hi"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1e3}'}}
TEXT = {"type": "text", "text": "a"}


def tool(i):
    return {"type": "function", "function": {"name": f"f{i}", "parameters": {"type": "object", "properties": {"a": {}}}}}


BODIES = {
    "turns": (ChatCompletions(), lambda n: {"messages": [USER, {"role": "assistant", "content": "a"}] * n}),
    "users": (ChatCompletions(), lambda n: {"messages": [USER] * n}),
    "systems": (ChatCompletions(), lambda n: {"messages": [USER, {"role": "system", "content": "s"}] * n}),
    "parts": (ChatCompletions(), lambda n: {"messages": [{"role": "user", "content": [TEXT] * n}]}),
    "calls": (ChatCompletions(), lambda n: {"messages": [USER, {"role": "assistant", "tool_calls": [CALL] * n}]}),
    "results": (
        ChatCompletions(),
        lambda n: {
            "messages": [
                USER,
                {"role": "assistant", "tool_calls": [CALL]},
                *[{"role": "tool", "tool_call_id": "c", "content": "r"}] * n,
            ]
        },
    ),
    "tools": (ChatCompletions(), lambda n: {"messages": [USER], "tools": [tool(i) for i in range(n)]}),
    "stray thoughts": (ChatCompletions(), lambda n: {"messages": [USER, {"role": "assistant", "content": "</think>" * n}]}),
    "blanks": (ChatCompletions(), lambda n: {"messages": [{"role": "user", "content": " \n" * 5 * n + "a"}]}),
    "accents": (ChatCompletions(), lambda n: {"messages": [{"role": "user", "content": "a" + "\u0301\u0323" * n}]}),
    "digits": (ChatCompletions(), lambda n: {"messages": [{"role": "user", "content": "1" * 10 * n}]}),
    "one letter": (ChatCompletions(), lambda n: {"messages": [{"role": "user", "content": "a" * 10 * n}]}),
    "specials": (ChatCompletions(), lambda n: {"messages": [{"role": "user", "content": "<|im_end|>" * n}]}),
    "halves of tags": (ChatCompletions(), lambda n: {"messages": [{"role": "user", "content": "<|im_" * n}]}),
    "arguments": (
        ChatCompletions(),
        lambda n: {
            "messages": [
                USER,
                {
                    "role": "assistant",
                    "tool_calls": [{**CALL, "function": {"name": "f", "arguments": '{"x": [' + "1.5," * n + "2]}"}}],
                },
            ]
        },
    ),
    "prompts": (Completions(), lambda n: {"prompt": "a b" * n, "stop": ["a" * 200]}),
    "items": (ResponsesDialect(), lambda n: {"input": [USER, {"role": "assistant", "content": "a"}] * n}),
    "reasoning items": (
        ResponsesDialect(),
        lambda n: {
            "input": [USER, *[{"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "t"}]}] * n]
        },
    ),
    "call items": (
        ResponsesDialect(),
        lambda n: {
            "input": [
                USER,
                *[
                    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                    {"type": "function_call_output", "call_id": "c", "output": "r"},
                ]
                * n,
            ]
        },
    ),
    "joined items": (ResponsesDialect(), lambda n: {"input": [{"role": "assistant", "content": "a"}] * n}),
    "blocks": (MessagesDialect(), lambda n: {"max_tokens": 3, "messages": [{"role": "user", "content": [TEXT] * n}]}),
    "system blocks": (MessagesDialect(), lambda n: {"max_tokens": 3, "system": [TEXT] * n, "messages": [USER]}),
    "use blocks": (
        MessagesDialect(),
        lambda n: {
            "max_tokens": 3,
            "messages": [
                USER,
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": f"t{i}", "name": "f", "input": {}} for i in range(n)],
                },
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": f"t{i}", "content": "r"} for i in range(n)],
                },
            ],
        },
    ),
}


@pytest.mark.parametrize(("dialect", "body_of"), BODIES.values(), ids=BODIES)
def test_reading_of_requests(dialect, body_of):
    limits, tokenizer = Limits(1 << 17), demo_tokenizer()

    def read(body):
        fields = parse_json(body, limits)
        session_id(fields, {})
        ReadRequest.of(dialect.parse(fields, {}), tokenizer, TEMPLATE, limits)

    read(json.dumps(body_of(2)).encode())
    check_linear(read, lambda n: json.dumps(body_of(n)).encode(), 120)


@pytest.mark.parametrize("path", ["demo/chat_template.jinja", "templates/json_calls.jinja"])
@pytest.mark.parametrize(
    "pump",
    [
        "<",
        "</",
        "\n",
        "<tool_call>",
        "<tool_call>\n",
        "</think>",
        "<parameter=a>\n",
        "</parameter>",
        '{"a": [',
        '"\\',
        "{ ",
        " ",
    ],
)
def test_parsing_of_outputs(path, pump):
    """Each character comes as a delta of its own, in content and in a call."""
    template = ChatTemplate((DATA / path).read_text(encoding="utf-8"), tokens={})
    form = OutputFormat.of(template, [tool(0)])
    heads = ["", "<tool_call>\n<function=f0>\n<parameter=a>\n", '<tool_call>\n{"name": "f0", "arguments": {"a": "']

    def parse(text):
        for head in heads:
            parser = form.parser("", thinking=False)
            for character in head + text:
                parser.push(character)
            parser.finish()

    check_linear(parse, lambda n: (pump * n)[:n], 300)
