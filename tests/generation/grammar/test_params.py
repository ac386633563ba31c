"""Fields of a request that constrain its output: what is accepted, what excludes what, and where grammars begin."""

import random

import pytest
from demo_text import DATA, demo_tokenizer
from word_grammar import tokens_of

from dflash.errors import RequestError
from dflash.generation.grammar.build import grammars
from dflash.generation.grammar.call_form import call_form
from dflash.generation.grammar.limits import MAX_CHARACTERS, MAX_DEPTH
from dflash.generation.grammar.params import GrammarParams
from dflash.generation.grammar.reasoning import reasoning_after
from dflash.model.text.chat_template import ChatTemplate

XML = ChatTemplate((DATA / "demo" / "chat_template.jinja").read_text(encoding="utf-8"), tokens={})
JSON = ChatTemplate((DATA / "templates" / "json_calls.jinja").read_text(encoding="utf-8"), tokens={})
OBJECT = {"type": "json_object"}
NAMED = {"type": "function", "function": {"name": "read"}}
READ = {"name": "read", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}}
LIST = {"name": "list", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}
USER = [{"role": "user", "content": "Hello"}]


def tools(*functions, **more):
    return [{"type": "function", "function": function | more} for function in functions]


def schema(value):
    return {"type": "json_schema", "json_schema": {"schema": value}}


def built(template=XML, offered=(), ids=(5,), is_chat=False, **fields):
    return grammars(GrammarParams(**fields), [(list(ids), is_chat)], demo_tokenizer(), template, offered)[0]


def first(grammar, text=""):
    """Tokens that may follow a text."""
    matcher = grammar.start()
    for token in demo_tokenizer().encode(text):
        assert matcher.advance(token)
    return None if matcher.free else {demo_tokenizer().token_bytes(token) for token in tokens_of(matcher.mask())}


def deep(levels):
    value = {"type": "string"}
    for _ in range(levels):
        value = {"type": "array", "items": value}
    return value


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"regex": 3}, "regex: must be a string"),
        ({"lark": b"start: /a/"}, "lark: must be a string"),
        ({"regex": "a" * (MAX_CHARACTERS + 1)}, f"regex: has {MAX_CHARACTERS + 1} characters, at most {MAX_CHARACTERS}"),
        ({"response_format": "json"}, "response_format: type must be text, json_object or json_schema"),
        ({"response_format": {"type": "yaml"}}, "response_format: type must be text, json_object or json_schema"),
        ({"response_format": {"type": "json_schema"}}, r"response_format: json_schema\.schema must be a JSON schema"),
        ({"response_format": schema([1])}, r"response_format: json_schema\.schema must be a JSON schema"),
        ({"response_format": schema({"const": "a" * MAX_CHARACTERS})}, "response_format: has [0-9]+ characters"),
        ({"response_format": schema({"const": {1, 2}})}, "response_format: the schema is not JSON"),
        ({"response_format": schema(deep(MAX_DEPTH))}, f"response_format: the schema has more than {MAX_DEPTH} levels"),
        ({"response_format": schema(deep(5000))}, f"response_format: the schema has more than {MAX_DEPTH} levels"),
        ({"regex": "a", "lark": "start: /a/"}, "regex: can't be combined with lark"),
        ({"response_format": OBJECT, "regex": "a"}, "response_format: can't be combined with regex"),
        ({"grammar": "start: /a/", "tool_choice": "required"}, "grammar: can't be combined with tool_choice"),
        ({"response_format": OBJECT, "tool_choice": NAMED}, "response_format: can't be combined with tool_choice"),
        ({"tool_choice": "always"}, "tool_choice: must be 'auto', 'none', 'required' or "),
        ({"tool_choice": {"name": "read"}}, "tool_choice: must be 'auto', 'none', 'required' or "),
        ({"tool_choice": ["required"]}, "tool_choice: must be 'auto', 'none', 'required' or "),
    ],
)
def test_malformed_constraints_are_refused(fields, message):
    with pytest.raises(RequestError, match=f"^{message}"):
        GrammarParams(**fields)


@pytest.mark.parametrize(
    ("offered", "fields", "message"),
    [
        ([], {"tool_choice": "required"}, "tool_choice: is 'required', but tools holds none"),
        (tools(LIST), {"tool_choice": NAMED}, "tool_choice: names 'read', which is not among the tools"),
        (tools(READ, READ), {"tool_choice": "required"}, r"tools\[1\]: is the second one with the name 'read'"),
        (tools({"name": "a<b"}), {"tool_choice": "required"}, r"tools\[0\]: must name a function"),
        ([{"type": "function"}], {"tool_choice": "required"}, r"tools\[0\]: must name a function"),
        (
            tools({"name": "a", "parameters": {"type": "array"}}),
            {"tool_choice": "required"},
            r"tools\[0\]: parameters must be",
        ),
        (
            tools({"name": "a", "parameters": deep(99) | {"type": "object"}}),
            {"tool_choice": "required"},
            r"tools\[0\].parameters",
        ),
        (
            tools({"name": "a", "parameters": {"type": "object", "properties": {"x\n": {}}}}),
            {"tool_choice": "required"},
            r"tools: a has a parameter named 'x\\n'",
        ),
        (
            tools(
                {"name": "a", "parameters": {"type": "object", "properties": {"x": {"type": "array", "uniqueItems": True}}}},
                strict=True,
            ),
            {},
            "tools: .*uniqueItems",
        ),
    ],
)
def test_malformed_tools_are_refused(offered, fields, message):
    with pytest.raises(RequestError, match=f"^{message}"):
        built(offered=offered, **fields)


def test_a_keyword_that_cannot_be_enforced_matters_only_if_the_tool_is_strict():
    lists = {"name": "a", "parameters": {"type": "object", "properties": {"x": {"type": "array", "uniqueItems": True}}}}
    assert built(offered=tools(lists), tool_choice="required") is not None


def test_an_unknown_template_can_force_no_call():
    with pytest.raises(RequestError, match=r"^tool_choice: the chat template does not show tool calls"):
        built(ChatTemplate("{{ messages }}", tokens={}), tools(READ), tool_choice="required")


def test_forms_of_calls():
    assert call_form(XML).tags
    assert not call_form(JSON).tags
    assert first(
        built(JSON, tools(READ), tool_choice="required"), '<tool_call>\n{"name": "read", "arguments": {"path":'
    ) >= {b'"', b' "'}


def test_what_constrains_nothing_has_no_grammar():
    for fields in ({}, {"response_format": {"type": "text"}}, {"tool_choice": "auto"}, {"tool_choice": "none"}):
        assert built(offered=tools(READ, LIST), **fields) is None
    assert built(offered=tools(READ, strict=True), tool_choice="none") is None
    assert built() is None


def test_a_strict_tool_constrains_calls_and_nothing_else():
    grammar = built(offered=[*tools(READ, strict=True), *tools(LIST)])
    assert first(grammar) is None
    assert first(grammar, "Let me look.\n\n") is None
    assert first(grammar, "I <tool_call>\n<function=") == {b"r", b"re", b"read", b"l", b"li", b"list", b"lis"}
    call = "<tool_call>\n<function=list>\n</function>\n</tool_call>"
    assert first(grammar, call) is None
    assert first(grammar, f"{call}\n<tool_call>") == {b"\n"}


def test_an_answer_or_a_call():
    """With a response format, tools may still be called."""
    grammar = built(offered=tools(READ), response_format=OBJECT)
    opened = demo_tokenizer().token_bytes(demo_tokenizer().id_of("<tool_call>"))
    assert opened in first(grammar)
    assert b"{" in first(grammar)
    assert opened not in first(built(offered=tools(READ), response_format=OBJECT, tool_choice="none"))


def chat(template, **settings):
    return demo_tokenizer().encode(template.render(USER, **settings))


def test_where_reasoning_stands():
    tokenizer = demo_tokenizer()
    opens, closes = tokenizer.id_of("<think>"), tokenizer.id_of("</think>")
    assert tuple(reasoning_after(chat(XML), tokenizer, XML)) == (closes, None), "the template opens it"
    assert reasoning_after(chat(XML, enable_thinking=False), tokenizer, XML) is None
    assert tuple(reasoning_after(chat(JSON), tokenizer, JSON)) == (closes, opens), "the model may open it"
    assert reasoning_after(chat(JSON, enable_thinking=False), tokenizer, JSON) is None
    assert reasoning_after(tokenizer.encode("Say: "), tokenizer, None) is None
    earlier = tokenizer.encode("<think>\na\n</think>\nb<|im_end|>\n<|im_start|>assistant\n")
    assert tuple(reasoning_after(earlier, tokenizer, JSON)) == (closes, opens), "an earlier turn does not count"


def test_grammars_begin_after_reasoning():
    after = built(ids=chat(XML), is_chat=True, response_format=OBJECT)
    everything = {demo_tokenizer().token_bytes(token) for token in range(demo_tokenizer().n_vocab)}
    ends = {demo_tokenizer().token_bytes(token) for token in demo_tokenizer().eos_ids}
    assert first(after, "any thought </tool_call> {") == everything - ends, "an answer must follow"
    assert {b"{", b"\n", b"\n\n"} <= first(after, "any thought</think>") <= {b"{", b"\n", b"\n\n", b'{"', b"{\n", b"{}"}
    assert b"{" in first(after, "any thought</think>\n\n")
    at_once = built(ids=chat(XML, enable_thinking=False), is_chat=True, response_format=OBJECT)
    assert first(at_once) <= {b"{", b'{"', b"{\n", b"{}"}
    either = built(JSON, ids=chat(JSON), is_chat=True, response_format=OBJECT)
    assert b"<think>" in first(either)
    assert b"{" in first(either)
    assert first(either, "<think>") == everything - ends
    assert b"<think>" not in first(either, "{")


def noise(rng, depth):
    """Anything that JSON can hold, with the words of schemas in places where they do not belong."""
    words = [
        "type",
        "properties",
        "required",
        "anyOf",
        "$ref",
        "$defs",
        "enum",
        "const",
        "items",
        "string",
        "object",
        "#/$defs/a",
    ]
    kind = rng.randint(0, 8 if depth else 4)
    if kind > 4:
        parts = [noise(rng, depth - 1) for _ in range(rng.randint(0, 4))]
        return parts if kind == 5 else dict(zip(rng.sample(words, len(parts)), parts, strict=True))
    return [rng.choice(words), rng.randint(-3, 3), None, True, rng.choice(words)][kind]


@pytest.mark.parametrize("template", [XML, JSON], ids=["xml", "json"])
def test_nonsense_in_schemas_is_refused_or_harmless(template):
    rng, refused = random.Random(5), 0
    for _ in range(200):
        parameters = noise(rng, 4)
        offered = [{"type": "function", "function": {"name": "a", "parameters": parameters, "strict": rng.random() < 0.5}}]
        try:
            built(template, offered, tool_choice="required").start().mask()
        except RequestError as error:
            refused += 1
            assert "\n" not in str(error)
    assert 10 < refused < 190


def test_references_among_definitions_end():
    """Cycles, and a thousand ways down to the same definition."""
    many = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 10} for i in range(20)} | {"d20": {"type": "integer"}}
    definitions = many | {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "string"}]}, "b": {"$ref": "#/$defs/b"}}

    def starts(name):
        parameters = {"$defs": definitions, "properties": {"x": {"$ref": f"#/$defs/{name}"}}, "required": ["x"]}
        grammar = built(offered=tools({"name": "f", "parameters": parameters}), tool_choice="required")
        return first(grammar, "<tool_call>\n<function=f>\n<parameter=x>\n")

    assert b"\n" in starts("a")
    assert b"\n" in starts("b")
    assert starts("d19") <= {b"-", *(str(i).encode() for i in range(10))}
    assert starts("d12") <= {b"-", *(str(i).encode() for i in range(10))}
