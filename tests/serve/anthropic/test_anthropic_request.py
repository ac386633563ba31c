"""Bodies of the Messages API become requests of the server."""

import pytest

from dflash.generation.messages.fields import FieldError
from dflash.generation.recovery.think_budget import ThinkBudget
from dflash.serve.anthropic.request import parse_messages

USER = {"role": "user", "content": "Hi"}
LS = {"name": "ls", "description": "List.", "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}}}
SCHEMA = {"type": "object", "properties": {"title": {"type": "string"}}}


def parsed(messages=(USER,), **fields):
    settings = {name: fields.pop(name) for name in ("keep_billing_header",) if name in fields}
    return parse_messages({"model": "m", "max_tokens": 9, "messages": list(messages), **fields}, **settings)


def text(words, **more):
    return {"type": "text", "text": words, **more}


def result(identifier, content, **more):
    return {"type": "tool_result", "tool_use_id": identifier, "content": content, **more}


def function(name, **more):
    return {"type": "function", "function": {"name": name, **more}}


@pytest.mark.parametrize(
    ("blocks", "messages"),
    [
        ("Hi", [{"role": "user", "content": "Hi"}]),
        ([text("Hi", cache_control={"type": "ephemeral"})], [{"role": "user", "content": "Hi"}]),
        ([text("a"), text("b\n"), text("c")], [{"role": "user", "content": "a\nb\n\nc"}]),
        ([], [{"role": "user", "content": ""}]),
        (
            [result("1", "one"), result("2", [text("two"), text("lines")], is_error=True), text("and"), text("now")],
            [
                {"role": "tool", "tool_call_id": "1", "content": "one"},
                {"role": "tool", "tool_call_id": "2", "content": "two\nlines"},
                {"role": "user", "content": "and\nnow"},
            ],
        ),
        (
            [text("first"), result("1", None), text("last")],
            [
                {"role": "user", "content": "first"},
                {"role": "tool", "tool_call_id": "1", "content": ""},
                {"role": "user", "content": "last"},
            ],
        ),
        (
            [result("1", [text("a"), {"type": "tool_reference", "tool_name": "ls"}])],
            [{"role": "tool", "tool_call_id": "1", "content": [text("a"), {"type": "tool_reference", "tool_name": "ls"}]}],
        ),
    ],
)
def test_messages_of_the_user(blocks, messages):
    assert list(parsed([{"role": "user", "content": blocks}]).messages) == messages


def test_messages_of_the_assistant():
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "redacted_thinking", "data": "c2VjcmV0"},
        text("Look."),
        {"type": "tool_use", "id": "1", "name": "ls", "input": {"n": 60000.0, "m": 1, "e": 1e-7, "path": "é"}},
        {"type": "tool_use", "id": "2", "name": "gone", "input": {}},
    ]
    (_, assistant) = parsed([USER, {"role": "assistant", "content": blocks}]).messages
    assert assistant == {
        "role": "assistant",
        "content": "Look.",
        "reasoning_content": "hm",
        "tool_calls": [
            {"id": "1", **function("ls", arguments={"n": 60000.0, "m": 1, "e": 1e-7, "path": "é"})},
            {"id": "2", **function("gone", arguments={})},
        ],
    }
    numbers = assistant["tool_calls"][0]["function"]["arguments"]
    assert type(numbers["n"]) is float and type(numbers["m"]) is int


def test_system_messages_stay_where_they_are():
    late = {"role": "system", "content": [text("note", cache_control={"type": "ephemeral"})]}
    messages = parsed([USER, late, {"role": "assistant", "content": "Yes"}, late], system="Be brief.").messages
    assert [message["role"] for message in messages] == ["system", "user", "system", "assistant", "system"]
    assert messages[0]["content"] == "Be brief."
    assert messages[2] == messages[4] == {"role": "system", "content": "note"}


BILLING = "x-anthropic-billing-header: cc_version=2.1.330.c4f; cc_entrypoint=cli;"


@pytest.mark.parametrize(
    ("system", "without", "whole"),
    [
        ([text(BILLING), text("a"), text("b")], "a\nb", f"{BILLING}\na\nb"),
        ([text(f"{BILLING}\na"), text("b")], "a\nb", f"{BILLING}\na\nb"),
        (f"{BILLING}\na\nb", "a\nb", f"{BILLING}\na\nb"),
        ([text("a"), text(BILLING)], "a", f"a\n{BILLING}"),
        ([text("a"), text(f"{BILLING}\nb")], "a\nb", f"a\n{BILLING}\nb"),
    ],
)
def test_the_billing_line_is_dropped(system, without, whole):
    assert parsed(system=system).messages[0] == {"role": "system", "content": without}
    assert parsed(system=system, keep_billing_header=True).messages[0] == {"role": "system", "content": whole}


def test_a_billing_line_alone_leaves_no_system_message():
    assert parsed(system=BILLING).messages == (USER,)


def test_the_billing_line_stays_in_other_messages():
    assert parsed([{"role": "user", "content": BILLING}]).messages[0]["content"] == BILLING


def test_tools_are_read():
    tools = [
        {**LS, "cache_control": {"type": "ephemeral"}, "eager_input_streaming": True},
        {**LS, "name": "rm", "type": "custom", "strict": True},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
        {**LS, "name": "later", "defer_loading": True},
    ]
    schema = {"description": "List.", "parameters": LS["input_schema"]}
    assert list(parsed(tools=tools).tools) == [
        function("ls", **schema),
        function("rm", **schema, strict=True),
        {**function("later", **schema), "defer_loading": True},
    ]


@pytest.mark.parametrize(
    ("choice", "wanted", "parallel"),
    [
        (None, None, True),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", False),
        ({"type": "any"}, "required", True),
        ({"type": "none"}, "none", True),
        ({"type": "tool", "name": "ls"}, function("ls"), True),
    ],
)
def test_tool_choices_are_read(choice, wanted, parallel):
    request = parsed(tools=[LS], tool_choice=choice)
    assert (request.grammar.tool_choice, request.parallel_tool_calls) == (wanted, parallel)


@pytest.mark.parametrize(
    ("thinking", "wanted"),
    [(None, False), ({"type": "disabled"}, False), ({"type": "adaptive", "display": "updates"}, True)],
)
def test_thinking_is_read(thinking, wanted):
    request = parsed(thinking=thinking)
    assert request.template_kwargs == {"enable_thinking": wanted}
    assert request.options.decoding.more == ()


def test_a_budget_of_thinking_is_a_recovery():
    thinking = {"type": "enabled", "budget_tokens": 1024}
    request = parsed(thinking=thinking)
    assert request.template_kwargs == {"enable_thinking": True}
    assert request.options.decoding.more == (ThinkBudget(1024),)
    assert parsed(thinking=thinking, thinking_token_budget=7).options.decoding.more == (ThinkBudget(7),)
    assert parsed(thinking={"type": "enabled"}).options.decoding.more == ()


def test_thinking_is_kept_if_the_client_asks():
    keep = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    assert parsed(context_management=keep).template_kwargs == {"enable_thinking": False, "preserve_thinking": True}
    turns = {"edits": [{"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 1}}]}
    assert "preserve_thinking" not in parsed(context_management=turns).template_kwargs
    kwargs = {"preserve_thinking": False, "enable_thinking": True}
    assert parsed(context_management=keep, chat_template_kwargs=kwargs).template_kwargs == kwargs


@pytest.mark.parametrize("where", ["config", "format"])
def test_a_schema_of_the_output(where):
    wanted = {"type": "json_schema", "schema": SCHEMA}
    fields = {"output_config": {"effort": "high", "format": wanted}} if where == "config" else {"output_format": wanted}
    assert parsed(**fields).grammar.schema == SCHEMA
    assert parsed(output_config={"effort": "high"}).grammar.schema is None


def test_settings_are_read():
    settings = {"temperature": 0.5, "top_p": 0.9, "top_k": 40, "stop_sequences": ["END"], "stream": True}
    options = parsed(**settings, metadata={"user_id": "x"}, service_tier="auto", unknown=1).options
    assert (options.sampling.temperature, options.sampling.top_p, options.sampling.top_k) == (0.5, 0.9, 40)
    assert (options.model, options.max_tokens, options.stop, options.stream, options.n) == ("m", 9, ("END",), True, 1)


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}


@pytest.mark.parametrize(
    ("fields", "name", "words"),
    [
        ({"messages": []}, "messages", "at least one"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "user, assistant, system"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "is required"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content", "array of blocks"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0].type", "'image' can't be read"),
        ({"messages": [{"role": "user", "content": [{"type": "magic"}]}]}, "messages[0].content[0].type", "not known"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text", "is required"),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": "ls", "input": "{}"}]}]},
            "messages[0].content[0].input",
            "JSON object",
        ),
        ({"system": 3}, "system", "array of blocks"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name", "is required"),
        ({"tool_choice": {"type": "any"}}, "tool_choice.type", "tools holds none"),
        ({"tool_choice": {"type": "tool", "name": "ls"}}, "tool_choice.name", "'ls' is not among"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type", "auto, any, none, tool"),
        ({"thinking": {"type": "much"}}, "thinking.type", "enabled, adaptive, disabled"),
        ({"max_tokens": 0}, "max_tokens", "whole number"),
        ({"stop_sequences": [""]}, "stop_sequences", "none of them empty"),
        ({"output_config": {"format": {"type": "text"}}}, "output_config.format.type", "json_schema"),
        ({"output_config": {"format": {"type": "json_schema", "schema": 3}}}, "output_config.format", "JSON schema"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools", "top of the body"),
    ],
)
def test_errors_name_the_field(fields, name, words):
    with pytest.raises(FieldError, match=words.replace("[", r"\[")) as caught:
        parsed(**fields)
    assert caught.value.field == name
