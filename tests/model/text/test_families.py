"""Chat templates of Qwen2.5, Llama 3 and Mistral: system messages, tools, calls and their results."""

import pytest
from family_tokens import family_template

from dflash.errors import TemplateError
from dflash.generation.messages.chat_prompt import chat_text

CALL = {"id": "call_0123456789abcdef_0", "type": "function", "function": {"name": "run", "arguments": '{"n": 1.50}'}}
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Run it."},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": CALL["id"], "content": "done"},
    {"role": "user", "content": "Again."},
]
TOOLS = [{"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize("family", ["qwen2_5", "llama3", "mistral_list", "mistral_args"])
def test_a_conversation_with_a_call(family):
    messages = TALK if family != "qwen2_5" else [*TALK[:2], {**TALK[2], "content": ""}, *TALK[3:]]
    text = family_template(family).render(messages, tools=TOOLS)
    positions = [text.index(part) for part in ("Be brief.", "Run it.", '{"n": 1.5}', "done", "Again.")]
    assert positions == sorted(positions) or family == "mistral_list"
    assert family_template(family).abilities.tools
    assert family_template(family).abilities.system
    assert family_template(family).abilities.parallel_calls is (family != "llama3")


@pytest.mark.parametrize("family", ["qwen2_5", "llama3", "mistral_list", "mistral_args"])
def test_content_in_parts_is_joined(family):
    """These templates know only text; agents send parts."""
    parts = [{"type": "text", "text": "Run"}, {"type": "text", "text": "it."}]
    in_parts = [
        {**message, "content": parts} if message.get("content") else message for message in TALK if message["role"] != "tool"
    ]
    joined = [{**message, "content": "Run\nit."} if message.get("content") else message for message in in_parts]
    template = family_template(family)
    assert not template.takes_parts
    assert chat_text(template, in_parts, tools=TOOLS) == chat_text(template, joined, tools=TOOLS)


def test_identifiers_of_nine_letters():
    """A call and its result keep the same identifier, and one that fits is not changed. The caller's stay as they are."""
    text = family_template("mistral_list").render(TALK, tools=TOOLS)
    (written,) = {part.split('"')[0] for part in text.split('"id": "')[1:]}
    assert len(written) == 9
    assert f'"call_id": "{written}"' in text
    assert CALL["id"] == "call_0123456789abcdef_0"
    other = [TALK[1], {**TALK[2], "tool_calls": [{**CALL, "id": "call_other"}, {**CALL, "id": "abcdefgh1"}]}]
    assert written not in family_template("mistral_list").render(other)
    assert '"id": "abcdefgh1"' in family_template("mistral_list").render(other)
    with pytest.raises(TemplateError, match="nine letters"):
        family_template("mistral_list").render([TALK[1], {"role": "tool", "content": "done"}])
