"""Chat messages as clients send them, up to the prompt; and reasoning, calls and constraints in responses."""

import json

import pytest
from chat_stream import events_of, folded
from in_process import sent

from dflash.decode.drafters import Strategy
from dflash.serve.limits import Limits
from dflash.serve.openai.chat_request import parse_chat
from dflash.serve.preparing.completions import ReadRequest

USER = {"role": "user", "content": "List the files."}


def tool(name, **more):
    parameters = {"type": "object", "properties": {"path": {"type": "string"}, "n": {"type": "number"}}}
    return {"type": "function", "function": {"name": name, "description": f"Does {name}.", "parameters": parameters}, **more}


def called(arguments, name="ls"):
    return {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": name, "arguments": arguments}}]}


@pytest.fixture
def read(lm):
    """Parses, renders and tokenizes a chat body."""
    return lambda messages=(USER,), **body: ReadRequest.of(
        parse_chat({"messages": list(messages), **body}), lm.tokenizer, lm.template, Limits(8192)
    )


@pytest.fixture
def prompt(lm, read):
    return lambda *args, **body: lm.tokenizer.decode(read(*args, **body).prompts[0])


@pytest.fixture
def ask(app_of):
    """Answers a chat request by a script; returns the whole message, its streamed form and the finish reasons."""

    def send(*script, context=8192, **body):
        whole, streamed = (
            sent(
                app_of(*script, limits=Limits(context)),
                "POST",
                "/v1/chat/completions",
                json={"messages": [USER], **body, **more},
            )
            for more in ({}, {"stream": True})
        )
        if whole.status_code != 200:
            assert streamed.status_code == whole.status_code
            assert streamed.json() == whole.json()
            return whole.status_code, whole.json()["error"]
        choice = whole.json()["choices"][0]
        message, reason = folded(events_of(streamed.text))
        for call, other in zip(message.get("tool_calls", ()), choice["message"].get("tool_calls", ()), strict=True):
            assert call["id"] != other["id"], "identifiers are unique"
            call["id"] = other["id"]
        assert (message, reason) == (choice["message"], choice["finish_reason"])
        return message, reason

    return send


CALLS = (
    "I think\nso.\n</think>\n\nI will look.\n\n<tool_call>\n<function=ls>\n<parameter=path>\nsrc/\u00e9\n</parameter>\n"
    "<parameter=n>\n1000.0\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=cat>\n</function>\n</tool_call>"
)


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_reasoning_text_and_calls(ask, size):
    """However the text is split into steps."""
    pieces = [CALLS[i : i + size] for i in range(0, len(CALLS), size)]
    message, reason = ask(*pieces, tools=[tool("ls"), tool("cat")])
    assert message["reasoning_content"] == "I think\nso."
    assert message["content"].strip() == "I will look."
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "ls", "arguments": '{"path": "src/\u00e9", "n": 1000.0}'},
        {"name": "cat", "arguments": "{}"},
    ]
    assert reason == "tool_calls"


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_without_parallel_calls_the_first_one_ends_the_output(ask, size):
    pieces = [CALLS[i : i + size] for i in range(0, len(CALLS), size)]
    message, reason = ask(*pieces, tools=[tool("ls"), tool("cat")], parallel_tool_calls=False)
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["ls"]
    assert (message["content"].strip(), reason) == ("I will look.", "tool_calls")


def test_no_tools_or_none_wanted_means_no_calls(ask, read, lm):
    assert ask(CALLS)[0]["content"].endswith("</tool_call>")
    message, reason = ask(CALLS, tools=[tool("ls")], tool_choice="none")
    assert message["content"].endswith("</tool_call>")
    assert reason == "stop"
    (completion,) = read(tools=[tool("ls")], tool_choice="none", logit_bias={"5": 2}).completions(Strategy())
    assert dict(completion.session.sampling.logit_bias) == {5: 2.0, lm.tokenizer.id_of("<tool_call>"): -100.0}


def test_the_prompt_keeps_its_tools_whatever_the_choice(read):
    prompts = [read(tools=[tool("ls")], tool_choice=choice).prompts for choice in ("none", "auto", "required", None)]
    assert all(each == prompts[0] for each in prompts)


@pytest.mark.parametrize("arguments", ['{"path": "half', "[1]", "null", "5", '{"a": 1} x'])
def test_broken_arguments_are_shown_as_they_are(prompt, arguments):
    assert f"<parameter=arguments>\n{arguments}\n</parameter>" in prompt([USER, called(arguments), USER])


@pytest.mark.parametrize("arguments", ["", " ", "{}", None])
def test_empty_arguments_are_none(prompt, arguments):
    assert "<function=ls>\n</function>" in prompt([USER, called(arguments), USER])


def test_deferred_tools_stand_where_a_result_names_them(prompt, ask):
    found = {"role": "tool", "tool_call_id": "1", "content": [{"type": "tool_reference", "tool_name": "cat"}]}
    history, tools = [USER, called("{}"), found], [tool("cat", defer_loading=True), tool("ls")]
    definition = json.dumps(tool("cat"))
    text = prompt(history, tools=tools)
    assert f"<tool_response>\n{definition}\n</tool_response>" in text
    assert text.count(definition) == 1
    assert prompt(tools=tools) == prompt(tools=[tool("ls")])
    inner = {**tool("cat"), "function": {**tool("cat")["function"], "defer_loading": True}}
    assert prompt(history, tools=[inner, tool("ls")]) == text
    message, _ = ask("</think>\n\n<tool_call>\n<function=cat>\n</function>\n</tool_call>", messages=history, tools=tools)
    assert message["tool_calls"][0]["function"]["name"] == "cat"
    found["content"][0]["tool_name"] = "unknown"
    assert "<tool_response>\nunknown\n</tool_response>" in prompt(history, tools=tools)


def test_a_prompt_beyond_the_context_is_refused_in_words_that_clients_know(ask, read):
    n = len(read().prompts[0])
    for context in (n - 1, 2):
        status, error = ask("never", context=context)
        assert (status, error["code"]) == (400, "context_length_exceeded")
        assert error["message"].startswith(
            f"This model's maximum context length is {context} tokens. However, you requested {n} tokens in the messages"
        )
    assert ask("</think>\n\nYes", context=n)[0]["content"] == "Yes"


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


@pytest.mark.parametrize(
    ("body", "kind", "value"),
    [
        ({"json_schema": SCHEMA}, "schema", SCHEMA),
        ({"guided_json": SCHEMA}, "schema", SCHEMA),
        ({"guided_json": json.dumps(SCHEMA)}, "schema", SCHEMA),
        ({"structured_outputs": {"json": SCHEMA}}, "schema", SCHEMA),
        ({"structured_outputs": {"json_object": True}}, "schema", {"type": "object"}),
        ({"response_format": {"type": "json_object"}}, "schema", {"type": "object"}),
        ({"response_format": {"type": "text"}, "guided_regex": "a|b"}, "regex", "a|b"),
        ({"structured_outputs": {"regex": "a|b"}}, "regex", "a|b"),
        ({"grammar": 'start: "a"'}, "grammar", 'start: "a"'),
        ({"guided_grammar": 'start: "a"'}, "grammar", 'start: "a"'),
        ({"guided_choice": ["a", 'b"', "a"]}, "lark", 'start: OPTION\nOPTION: "a" | "b\\""'),
        ({"structured_outputs": {"choice": ["a"]}}, "lark", 'start: OPTION\nOPTION: "a"'),
        ({"guided_json": None, "guided_choice": [], "grammar": "", "json_schema": {}}, "schema", None),
    ],
)
def test_names_of_other_servers_for_constraints(read, body, kind, value):
    wanted = read(**body).request.grammar
    assert getattr(wanted, kind) == value
    assert (read(**body).completions(Strategy())[0].session.grammar is None) == (value is None)
