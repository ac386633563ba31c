"""Recoveries by name, and how a tool call begins."""

import re
from dataclasses import dataclass, replace

import pytest

from dflash.decode.recoveries.empty_retry import EmptyRetry
from dflash.decode.recoveries.loop_guard import LoopGuard
from dflash.decode.recoveries.min_tokens import MinTokens
from dflash.decode.registry.recoveries import (
    RECOVERIES,
    Option,
    RequestField,
    forms,
    from_environment,
    from_request,
    register,
)
from dflash.errors import RequestError
from dflash.generation.messages.fields import Fields
from dflash.generation.recovery.names import Language, check, recoveries
from dflash.generation.recovery.special_tokens import special_tokens_of
from dflash.generation.recovery.tool_call_prefix import opening
from dflash.generation.recovery.tool_stall import ToolStall
from dflash.model.text.chat_template import ChatTemplate

STALL, LEAST = "DFLASH_STALL_TOOL_PREFIX", "DFLASH_MIN_TOKENS"


def tool(name, *required, **properties):
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


READ = tool("read_file", "path", mode={"type": "string"}, path={"type": "string"})
TIME, PAY = tool("get_time"), tool("pay", "amount", amount={"type": "number"})
JSON_CALLS = ChatTemplate(
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    '<tool_call>\n{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}{% endfor %}",
    tokens={},
)


def opened(lm, template, tools, choice=None, default=None):
    found = opening(lm.tokenizer, template or lm.template, tools, choice, default=default)
    return found and lm.tokenizer.decode((*found.lead, *found.call))


@pytest.mark.parametrize(
    ("tools", "choice", "default", "wanted"),
    [
        ([READ], None, None, "<function=read_file>\n<parameter=path>\n"),
        ([READ], "required", None, "<function=read_file>\n<parameter=path>\n"),
        ([TIME], "auto", None, "<function=get_time>\n"),
        ([READ, TIME], None, None, "<function"),
        ([READ, TIME], "required", "get_time", "<function=get_time>\n"),
        ([READ, TIME], None, "pay", "<function"),
        ([READ], None, "pay", "<function=read_file>\n<parameter=path>\n"),
        (
            [READ, PAY],
            {"type": "function", "function": {"name": "pay"}},
            "read_file",
            "<function=pay>\n<parameter=amount>\n",
        ),
    ],
)
def test_the_opening_in_the_demos_words(lm, tools, choice, default, wanted):
    assert opened(lm, None, tools, choice, default) == f"\n\n<tool_call>\n{wanted}"


@pytest.mark.parametrize(
    ("tools", "wanted"),
    [
        ([READ], '{"name": "read_file", "arguments": {"path":'),
        ([PAY], '{"name": "pay", "arguments": {"amount":'),
        ([TIME], '{"name": "get_time", "arguments":'),
        ([READ, TIME], '{"name":'),
    ],
)
def test_the_opening_in_a_template_that_calls_in_json(lm, tools, wanted):
    """A character that may merge with the next one into one token, as a quote, is left to the model."""
    text = opened(lm, JSON_CALLS, tools)
    assert text.startswith(f"<tool_call>\n{wanted}")
    assert len(text) <= len(f"<tool_call>\n{wanted}") + 3


@pytest.mark.parametrize(
    ("parameters", "wanted"),
    [
        ({"required": ["a"], "properties": [1]}, '"arguments": {"a":'),
        ({"required": ["a"], "properties": {"a": 5}}, '"arguments": {"a":'),
        ({"required": ["a"], "properties": {"a": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}}, '"arguments": {"a":'),
        ({"required": [["a"]]}, '"arguments":'),
        ({"required": "path"}, '"arguments":'),
        (5, '"arguments":'),
    ],
)
def test_a_schema_that_says_little(lm, parameters, wanted):
    """The model decides if a quote comes next."""
    function = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    text = opened(lm, JSON_CALLS, [function])
    assert text.rstrip(" {").endswith(wanted.rstrip(" {"))
    assert opened(lm, None, [function]).startswith("\n\n<tool_call>\n<function=f>\n")


def test_nothing_to_open(lm):
    plain = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", tokens={})
    assert opened(lm, None, []) is None
    assert opened(lm, None, [READ], "none") is None
    assert opened(lm, plain, [READ]) is None
    with pytest.raises(RequestError, match="tool_choice: names 'fly', which is not among the tools"):
        opened(lm, None, [READ], {"type": "function", "function": {"name": "fly"}})


def test_an_opening_is_read_as_the_model_would_write_it(lm):
    """Its ids are those of a whole call, as far as they go."""
    ids = opening(lm.tokenizer, lm.template, [READ]).call
    for path in ("a.py", "/etc/hosts", "7", '"x"', "_"):
        call = f"<tool_call>\n<function=read_file>\n<parameter=path>\n{path}\n</parameter>\n</function>\n</tool_call>"
        assert tuple(lm.tokenizer.encode(call)[: len(ids)]) == ids


def test_recoveries_are_made_from_names(lm):
    language = Language(lm.tokenizer, lm.template, [READ])
    empty, stall, loop, least = recoveries("empty, stall,loop:200,min:8", language)
    assert (empty, loop, least) == (EmptyRetry(), LoopGuard(body=200), MinTokens(8))
    assert isinstance(stall, ToolStall)
    assert recoveries(["loop", MinTokens(3)], language) == (LoopGuard(), MinTokens(3))
    assert recoveries("", language) == recoveries("none", language) == ()
    assert recoveries("stall", Language(lm.tokenizer, lm.template)) == ()
    assert recoveries("stall", Language(lm.tokenizer, None, [READ])) == ()


@pytest.mark.parametrize("text", ["stal", "min", "min:x", "min:-1", "loop:", "empty:3", "none:1", "min:9999999999"])
def test_what_is_no_name(text, lm):
    for ask in (check, lambda text: recoveries(text, Language(lm.tokenizer))):
        with pytest.raises(RequestError, match=f"recover: '{text}' is not one of empty, loop"):
            ask(f"loop,{text}")


@pytest.mark.parametrize("text", ["min", "min:x", "loop:-1"])
def test_a_wrong_value_and_a_wrong_name_have_different_messages(text):
    with pytest.raises(RequestError, match=r"think-leak; (N|BODY) is a whole number$"):
        check(text)


@pytest.mark.parametrize("off", [None, "", "0", "false", "No", "OFF", " off "])
def test_the_environment_may_say_no(off):
    assert from_environment({} if off is None else {STALL: off, LEAST: off}) == ""


def test_the_environment_may_say_yes(lm, monkeypatch):
    assert from_environment({STALL: "1"}) == from_environment({STALL: "Yes"}) == "stall"
    assert from_environment({STALL: "bash", LEAST: "12"}) == "min:12,stall:bash"
    with pytest.raises(RequestError, match="DFLASH_MIN_TOKENS: must be a whole number or off, got 'many'"):
        from_environment({LEAST: "many"})
    monkeypatch.setenv(LEAST, "5")
    assert recoveries(None, Language(lm.tokenizer)) == (MinTokens(5),)
    assert recoveries("", Language(lm.tokenizer)) == ()


def test_the_words_of_a_stall(lm):
    (stall,) = recoveries("stall", Language(lm.tokenizer, lm.template, [READ]))
    ends = {lm.tokenizer.decode(ids) for ids in stall.action_suffixes}
    assert {":", ":\n\n", "`:"} <= ends
    assert "\uff1a" in ends
    assert all(text.rstrip(" \n*_").endswith((":", "\uff1a")) for text in ends)
    assert all(lm.tokenizer.decode([token]).endswith("\n") for token in stall.spaced)
    assert recoveries("stall", Language(lm.tokenizer, lm.template, [READ])) == (stall,)


def test_special_tokens_are_found_in_the_vocabulary(lm):
    marks = special_tokens_of(lm.tokenizer)
    one = lm.tokenizer.id_of
    assert marks.call == (one("<tool_call>"), one("</tool_call>"))
    assert marks.think == (one("<think>"), one("</think>"))
    assert {one("\n\n"), *marks.think} <= marks.silent
    assert {*lm.tokenizer.eos_ids, one("<|im_start|>")} <= marks.control <= marks.silent
    assert marks.control.isdisjoint(marks.call + marks.think)
    assert not any(lm.tokenizer.decode([token], skip_special=True).strip() for token in marks.silent - set(marks.think))


@pytest.fixture
def table(monkeypatch):
    monkeypatch.setattr(RECOVERIES, "_entries", dict(RECOVERIES))


def test_a_recovery_in_one_file_has_a_name_a_field_and_a_variable(lm, table):
    def read(fields):
        n = fields.integer("max_lines", 0, 99, 0)
        return Lines(n) if n else None

    @register("lines", Option("N", "n"), variable="DFLASH_LINES", field=RequestField("max_lines", read))
    @dataclass(frozen=True)
    class Lines:
        n: int = 5

        def __post_init__(self):
            if self.n > 99:
                raise RequestError(f"n: must be at most 99, got {self.n}")

        def build(self, language):
            return replace(self, n=self.n + len(language.tools))

    language = Language(lm.tokenizer, tools=[READ, TIME])
    assert recoveries("lines:9,lines,empty", language) == (Lines(11), Lines(7), EmptyRetry())
    assert from_environment({"DFLASH_LINES": "7", LEAST: "2"}) == "lines:7,min:2"
    assert from_environment({"DFLASH_LINES": "on"}) == "lines"
    assert from_environment({"DFLASH_LINES": "off"}) == ""
    assert forms() == "empty, lines[:N], loop[:BODY], min:N, stall[:TOOL], think:N, think-leak"
    assert from_request(Fields({"max_lines": 3, "min_tokens": 4})) == (Lines(3), MinTokens(4))
    assert from_request(Fields({})) == ()
    for text, reason in (("lines:x", " is not one of empty, lines"), ("lines:100", ": n: must be at most 99, got 100")):
        with pytest.raises(RequestError, match=f"^recover: '{text}'{re.escape(reason)}"):
            check(text)
    with pytest.raises(RequestError, match="DFLASH_LINES: must be a whole number or off, got 'x'"):
        from_environment({"DFLASH_LINES": "x"})
    with pytest.raises(ValueError, match="register: 'loop' is the name of LoopGuard; choose another"):
        register("loop")(Lines)
    with pytest.raises(ValueError, match="register: 'none' stands for no recovery"):
        register("none")(Lines)
