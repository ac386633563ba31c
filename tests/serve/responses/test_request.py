"""Bodies of the Responses API, also those that real clients sent."""

import json
from pathlib import Path

import pytest
from packed import packed_lines

from dflash.generation.messages.fields import FieldError
from dflash.serve.http_errors import Problem
from dflash.serve.preparing.prompts import prompt_ids
from dflash.serve.responses.request import parse_responses
from dflash.serve.responses.store import ResponseStore, as_json

DATA = Path(__file__).parents[2] / "data" / "responses" / "requests.jsonl.xz"
RECORDED = {each["name"]: each["body"] for each in packed_lines(DATA)}
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
LS = {"type": "function", "name": "ls", "parameters": {"type": "object"}}


def read(earlier=None, **body):
    return parse_responses({"input": "hi", **body}, earlier or ResponseStore())


@pytest.mark.parametrize("name", RECORDED)
def test_bodies_of_clients_are_read_and_rendered(name, lm):
    body, store = RECORDED[name], ResponseStore()
    store.add({"id": "resp_0001", "output": []}, as_json([{"role": "user", "content": "first"}]), None)
    request = parse_responses(body, store)
    text = lm.tokenizer.decode(prompt_ids(request, lm.tokenizer, lm.template, 1 << 15)[0])
    items = body["input"] if isinstance(body["input"], list) else [{"role": "user", "content": body["input"]}]
    for item in items:
        parts = item.get("content", item.get("output"))
        texts = [part["text"] for part in parts] if isinstance(parts, list) else [parts or item.get("input", "")]
        assert all(each.strip() in text for each in texts), "a text is missing from the prompt"
        assert item.get("name", "") in text
    offered = [tool for tool in body.get("tools", ()) if tool["type"] in ("function", "custom", "namespace")]
    assert len(request.tools) == sum(len(tool.get("tools", "1")) for tool in offered)
    assert request.options.stream == body.get("stream", False)
    assert request.store == body.get("store", True)


def test_what_codex_sends():
    request = parse_responses(RECORDED["codex/ns"], ResponseStore())
    assert [message["role"] for message in request.messages] == ["developer"] * 2 + ["user"] * 2 + ["assistant", "tool"]
    assert request.messages[4]["tool_calls"][0]["function"]["name"] == "close_agent"
    assert request.tools_by_name["close_agent"].namespace == "multi_agent_v1"
    assert request.wants_encrypted
    raw, summary = (parse_responses(RECORDED[f"codex/{name}"], ResponseStore()) for name in ("encraw", "encrypted"))
    assert raw.messages[:5] == summary.messages[:5]
    assert raw.messages[4]["reasoning_content"] == "I list."


def test_instructions_are_the_first_message():
    messages = read(instructions="Be brief.").messages
    assert messages == ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"})
    assert read(instructions="").messages == ({"role": "user", "content": "hi"},)


def test_earlier_responses_stand_between_instructions_and_input():
    store = ResponseStore()
    for name, previous in (("a", None), ("b", "a")):
        output = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": f"answer {name}"}]}
        store.add({"id": name, "output": [output]}, as_json([{"role": "user", "content": f"question {name}"}]), previous)
    request = read(store, previous_response_id="b", instructions="Be brief.")
    assert [message["content"] for message in request.messages] == [
        "Be brief.", "question a", "answer a", "question b", "answer b", "hi",
    ]  # fmt: skip
    assert json.loads(request.items) == [{"type": "message", "role": "user", "content": "hi"}]


def test_an_unknown_earlier_response():
    with pytest.raises(Problem) as caught:
        read(previous_response_id="resp_x")
    assert caught.value.body() == {
        "error": {
            "message": "Previous response with id 'resp_x' not found.",
            "type": "invalid_request_error",
            "param": "previous_response_id",
            "code": "previous_response_not_found",
        }
    }
    assert caught.value.status == 400


def test_a_text_format_becomes_the_schema_of_the_output():
    form = {"type": "json_schema", "name": "answer", "strict": True, "schema": SCHEMA}
    assert read(text={"format": form}).grammar.schema == SCHEMA
    assert read(text={"format": {"type": "json_object"}}).grammar.schema == {"type": "object"}
    assert read(text={"format": {**form, "schema": True}}).grammar.schema is True
    for text in ({"format": {"type": "text"}}, {"verbosity": "low"}, None):
        assert read(text=text).grammar.schema is None


def test_sampling_fields_become_settings():
    request = read(temperature=0.5, top_p=0.9, max_output_tokens=9, parallel_tool_calls=False, stream=True, seed=3)
    assert (request.options.sampling.temperature, request.options.sampling.top_p) == (0.5, 0.9)
    assert (request.options.max_tokens, request.options.stream, request.parallel_tool_calls) == (9, True, False)
    assert read(n=5).options.n == 1
    assert read(tools=[LS], tool_choice={"type": "function", "name": "ls"}).grammar.function == "ls"


def test_reasoning_is_turned_off_and_kept():
    assert read(reasoning={"effort": "none"}).template_kwargs == {"enable_thinking": False}
    for reasoning in (None, {"effort": "high"}, {"summary": "auto"}):
        assert (read(reasoning=reasoning).template_kwargs or {}).get("enable_thinking") is not False
    kwargs = {"enable_thinking": False, "preserve_thinking": True}
    assert read(chat_template_kwargs=kwargs).template_kwargs == read(**kwargs).template_kwargs == kwargs
    assert read(reasoning={"context": "all_turns"}).template_kwargs == {"preserve_thinking": True}
    assert read(reasoning={"context": "auto"}).template_kwargs is None


def test_fields_without_a_meaning_here_are_ignored():
    read(
        include=["file_search_call.results"], truncation="auto", service_tier="flex", prompt_cache_key="k", verbosity="low",
        client_metadata={}, safety_identifier="s", max_tool_calls=3, top_logprobs=2, context_management=[], background=False,
        stream_options=None, metadata=None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"input": None}, "input"),
        ({"input": 5}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "web_search_call"}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"instructions": ["a"]}, "instructions"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"previous_response_id": 5}, "previous_response_id"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"metadata": []}, "metadata"),
        ({"store": "no"}, "store"),
        ({"stream": 1}, "stream"),
        ({"include": "x"}, "include"),
        ({"tools": {}}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"reasoning": "high"}, "reasoning"),
        ({"reasoning": {"effort": 5}}, "reasoning.effort"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
    ],
)
def test_malformed_bodies_are_refused(body, field):
    with pytest.raises(FieldError) as caught:
        read(**body)
    assert caught.value.field == field
    assert field in str(caught.value)
