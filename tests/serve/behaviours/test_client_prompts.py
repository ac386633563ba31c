"""Messages, tools and switches in the forms that clients send."""

import pytest
from three_apis import CHAT, MESSAGES, PATHS, RESPONSES, SCHEMA, TOOLS, USER, body_of, called

NOTE, BRIEF = {"role": "system", "content": "Note."}, "Be brief."


@pytest.mark.parametrize("role", ["system", "developer"])
@pytest.mark.parametrize("path", PATHS)
def test_system_text_stays_where_it_stands(prompt, path, role):
    first = {"system": BRIEF} if path == MESSAGES else {}
    lead = [] if path == MESSAGES else [{"role": role, "content": BRIEF}]
    text = prompt(path, [*lead, USER, NOTE, {"role": "assistant", "content": "Two."}, USER, NOTE], **first)
    note = "<|im_start|>user\n<system-reminder>\nNote.\n</system-reminder><|im_end|>\n"
    head, middle, end = text.split(note)
    assert head.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nList the files.")
    assert "Two." in middle
    assert end == "<|im_start|>assistant\n<think>\n"


REASONING = {
    CHAT: [
        [{"role": "assistant", name: "Hm.", "content": "Yes"}] for name in ("reasoning_content", "reasoning", "thinking")
    ],
    MESSAGES: [
        [
            {
                "role": "assistant",
                "content": [{"type": "thinking", "thinking": "Hm.", **more}, {"type": "text", "text": "Yes"}],
            }
        ]
        for more in ({}, {"signature": ""}, {"signature": "of another server"})
    ],
    RESPONSES: [
        [{"type": "reasoning", **more}, {"role": "assistant", "content": [{"type": "output_text", "text": "Yes"}]}]
        for more in (
            {"summary": [{"type": "summary_text", "text": "Hm."}], "encrypted_content": None},
            {"summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}], "id": "rs_1"},
        )
    ],
}


@pytest.mark.parametrize("path", PATHS)
def test_reasoning_of_every_form_is_taken_back(prompt, path):
    for turn in REASONING[path]:
        for fields in ({"chat_template_kwargs": {"preserve_thinking": True}}, {"preserve_thinking": True}):
            assert "<think>\nHm.\n</think>\n\nYes<|im_end|>" in prompt(path, [USER, *turn, USER], **fields)


@pytest.mark.parametrize("tools", [True, False])
@pytest.mark.parametrize("path", PATHS)
def test_past_calls_need_no_offered_tool(prompt, path, tools):
    text = prompt(path, [USER, *called(path, "invalid"), *called(path, "gone")], tools=TOOLS[path] if tools else [])
    for name in ("invalid", "gone"):
        assert f"<function={name}>\n<parameter=path>\nsrc\n</parameter>" in text
    assert text.count("<tool_response>\na.py\n</tool_response>") == 2


@pytest.mark.parametrize("path", PATHS)
def test_content_has_many_forms(prompt, path):
    kind = "input_text" if path == RESPONSES else "text"
    parts = [{"type": kind, "text": "a."}, {"type": kind, "text": "py"}]
    separator = "\n" if path == MESSAGES else ""
    wanted = prompt(path, [USER, *called(path, "ls", f"a.{separator}py")])
    assert prompt(path, [USER, *called(path, "ls", parts)]) == wanted
    assert (
        prompt(path, [{**USER, "content": [{"type": kind, "text": USER["content"]}]}, *called(path, "ls", parts)]) == wanted
    )
    if path == MESSAGES:
        assert prompt(path, [USER, *called(path, "ls", parts, is_error=True)]) == wanted
        deferred = [*TOOLS[path], {"name": "find", "input_schema": SCHEMA, "defer_loading": True}]
        found = [{"type": "tool_reference", "tool_name": "find"}]
        text = prompt(path, [USER, *called(path, "ls", found)], tools=deferred)
        assert text.index('"name": "find"') > text.index("<tool_response>")
    if path == CHAT:
        call, result = called(path, "ls", parts)
        for content in ({"content": ""}, {"content": None}, {"content": [], "refusal": None}, {}):
            assert prompt(path, [USER, {**call, **content}, result]) == wanted
        system = prompt(path, [{"role": "system", "content": [{"type": "text", "text": BRIEF}]}, USER])
        assert system == prompt(path, [{"role": "system", "content": BRIEF}, USER])


FEATURES = {
    "$defs": {"Item": {"type": "object", "properties": {"n": {"type": "integer", "default": 1}}, "required": ["n"]}},
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "kind": {"enum": ["a", "b"]},
        "items": {"type": "array", "items": {"$ref": "#/$defs/Item"}},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
    },
    "required": ["name", "kind", "items", "note"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("strict", [{}, {"strict": True}, {"strict": None}])
def test_schemas_of_clients_are_compiled(ask, strict):
    named = {"name": "answer", "schema": FEATURES, **strict}
    schema = {"type": "json_schema", **named}
    for path, fields in (
        (CHAT, {"response_format": {"type": "json_schema", "json_schema": named}}),
        (CHAT, {"response_format": {"type": "json_object"}}),
        (RESPONSES, {"text": {"format": schema}}),
        (RESPONSES, {"text": {"format": {"type": "json_object"}}}),
        (MESSAGES, {"output_config": {"format": {"type": "json_schema", "schema": FEATURES}}}),
        (CHAT, {"tools": TOOLS[CHAT], "tool_choice": "required"}),
        (CHAT, {"tools": TOOLS[CHAT], "tool_choice": {"type": "function", "function": {"name": "ls"}}}),
        (RESPONSES, {"tools": TOOLS[RESPONSES], "tool_choice": {"type": "function", "name": "ls"}}),
        (MESSAGES, {"tools": TOOLS[MESSAGES], "tool_choice": {"type": "tool", "name": "ls"}}),
        (MESSAGES, {"tools": TOOLS[MESSAGES], "tool_choice": {"type": "any"}}),
    ):
        answer = ask(path, body_of(path, **fields))
        assert answer.status_code == 200, answer.text
        assert ask.engine.grammars == [True], (path, fields)


@pytest.mark.parametrize("path", PATHS)
def test_tools_that_run_elsewhere_are_skipped(prompt, path):
    others = [{"type": "web_search"}, {"type": "web_search_20250305", "name": "web_search"}, {"type": "tool_search"}]
    others += [{"type": "custom", "custom": {"name": "patch"}}] if path == CHAT else []
    assert prompt(path, [USER], tools=[*others, *TOOLS[path]]) == prompt(path, [USER], tools=TOOLS[path])
    assert prompt(path, [USER], tools=others) == prompt(path, [USER])


@pytest.mark.parametrize("path", PATHS)
def test_every_model_name_is_served(ask, path):
    for name in ("claude-opus-4-5", "gpt-5.1-codex", "qwen/any thing"):
        assert ask(path, body_of(path, model=name), "Hm.").json()["model"] == name


@pytest.mark.parametrize("path", PATHS)
def test_a_last_turn_of_the_assistant_is_followed_by_a_new_one(prompt, path):
    text = prompt(path, [USER, {"role": "assistant", "content": "Done."}])
    assert text.endswith("Done.<|im_end|>\n<|im_start|>assistant\n<think>\n")


@pytest.mark.parametrize(
    ("path", "fields", "thinks"),
    [
        (CHAT, {}, True),
        (CHAT, {"enable_thinking": False, "preserve_thinking": True}, False),
        (CHAT, {"chat_template_kwargs": {"enable_thinking": False}}, False),
        (CHAT, {"reasoning_effort": "high"}, True),
        (CHAT, {"reasoning_effort": "none"}, False),
        (CHAT, {"reasoning_effort": "none", "enable_thinking": True}, True),
        (CHAT, {"enable_thinking": False, "chat_template_kwargs": {"enable_thinking": True}}, True),
        (MESSAGES, {"thinking": None}, False),
        (MESSAGES, {"thinking": {"type": "disabled"}}, False),
        (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 1024}}, True),
        (MESSAGES, {"thinking": {"type": "adaptive", "display": "updates"}}, True),
        (RESPONSES, {"reasoning": {"effort": "none"}}, False),
        (RESPONSES, {"reasoning": {"effort": "high", "summary": "auto"}}, True),
    ],
)
def test_switches_of_thinking(prompt, path, fields, thinks):
    text = prompt(path, [USER], **fields)
    assert text.endswith("<|im_start|>assistant\n<think>\n" if thinks else "<think>\n\n</think>\n\n")


def test_head_of_an_unknown_path(ask):
    assert ask("/api/hello", None, method="HEAD").status_code == 404


@pytest.mark.parametrize("path", PATHS)
def test_users_may_follow_each_other(prompt, path):
    text = prompt(path, [{"role": "user", "content": f"Line {number}."} for number in range(8)])
    assert all(f"<|im_start|>user\nLine {number}.<|im_end|>\n" in text for number in range(8))


IMAGES = {
    CHAT: {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    RESPONSES: {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
    MESSAGES: {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
}


@pytest.mark.parametrize("path", PATHS)
def test_images_are_refused_by_name(ask, path):
    field = "input" if path == RESPONSES else "messages"
    answer = ask(path, body_of(path, [USER, {"role": "user", "content": [IMAGES[path]]}]))
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    message = answer.json()["error"]["message"]
    assert message.startswith(f"{field}[1].content[0].type: ")
    assert IMAGES[path]["type"] in message
    assert "text" in message


@pytest.mark.parametrize("path", PATHS)
def test_an_image_in_a_result_becomes_a_note(prompt, path):
    """It comes with every later request: a refusal would end the session for good."""
    assert "<tool_response>\n[image]\n</tool_response>" in prompt(path, [USER, *called(path, "ls", [IMAGES[path]])])


@pytest.mark.parametrize("path", PATHS)
def test_conversations_are_known_by_the_names_that_clients_give(ask, path):
    claude = {"metadata": {"user_id": '{"device_id": "0", "session_id": "one"}'}}
    for fields, headers in (
        ({"prompt_cache_key": "one"}, {}),
        (claude, {}),
        ({}, {"X-Session-Id": "one"}),
        ({"user": "one"}, {}),
    ):
        assert ask(path, body_of(path, **fields), headers=headers).status_code == 200
        assert ask.engine.conversations == ["one"]
    ask(path, body_of(path))
    assert ask.engine.conversations == [None]
