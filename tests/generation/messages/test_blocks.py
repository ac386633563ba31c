"""Each type of block and item is treated as its row says: tests are made from the table."""

import re
import typing
from pathlib import Path

import pytest

from dflash.generation.messages.chat_prompt import chat_text
from dflash.generation.messages.fields import FieldError
from dflash.generation.messages.page import page
from dflash.generation.messages.row import ASSISTANT, CHAT, ITEM, MESSAGES, RESPONSES, RESULT, SYSTEM, USER, Treatment
from dflash.generation.messages.table import ROWS, TABLE
from dflash.serve.anthropic.request import parse_messages
from dflash.serve.openai.chat_request import parse_chat
from dflash.serve.preparing.prompts import prompt_text
from dflash.serve.responses.request import parse_responses
from dflash.serve.responses.store import ResponseStore

CASES = [pytest.param(row, place, id=f"{row.api}-{place}-{row.kind}") for row in ROWS for place in row.places]
CITY = {"name": "city", "description": "Finds.", "input_schema": {"type": "object", "properties": {}}, "defer_loading": True}
KEPT = {"preserve_thinking": True}
SHOWN = re.compile(r"city|\[(image|audio|video|file)\]|Oslo")
"""Text of the examples, or the note that stands for them."""


def of(*treatments):
    return pytest.mark.parametrize(("row", "place"), [case for case in CASES if case.values[0].treatment in treatments])


def parsed(api, place, block):
    """A request whose conversation holds a block; None as a block leaves it out."""
    blocks = [] if block is None else [block]
    if api == RESPONSES:
        return parse_responses({**KEPT, "input": list(_items(place, blocks))}, ResponseStore())
    if api == CHAT:
        return parse_chat({**KEPT, "messages": list(_chat(place, blocks))})
    return parse_messages({**KEPT, "messages": list(_messages(place, blocks)), "max_tokens": 4, "tools": [CITY]})


def _items(place, blocks):
    yield {"role": "user", "content": "q"}
    if place == RESULT:
        yield {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
        yield {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "r"}, *blocks]}
    elif place == ITEM:
        yield from blocks
    else:
        kind = {"type": "input_text" if place != ASSISTANT else "output_text", "text": "p"}
        yield {"role": place, "content": [kind, *blocks]}
    yield {"role": "user", "content": "go"}


def _chat(place, blocks):
    yield {"role": "user", "content": "q"}
    text = {"type": "text", "text": "p"}
    if place == RESULT:
        yield {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]}
        yield {"role": "tool", "tool_call_id": "1", "content": [text, *blocks]}
    else:
        yield {"role": place, "content": [text, *blocks]}
    yield {"role": "user", "content": "go"}


def _messages(place, blocks):
    yield {"role": "user", "content": "q"}
    text = {"type": "text", "text": "p"}
    if place == RESULT:
        yield {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]}
        yield {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [text, *blocks]}]}
    else:
        yield {"role": place, "content": [text, *blocks]}
    yield {"role": "user", "content": "go"}


def prompt(request, lm, *, whole=False):
    text = prompt_text(request, lm.template)
    return text if whole else text.rpartition("</IMPORTANT>")[2]


@of(Treatment.READ, Treatment.TEXT)
def test_its_content_reaches_the_prompt(row, place, lm):
    block = {"type": row.kind, **row.example}
    request = parsed(row.api, place, block)
    before, after = (prompt(each, lm) for each in (parsed(row.api, place, None), request))
    if row.kind == "compaction" and row.api == RESPONSES:
        assert after == before
        return
    assert SHOWN.search(after), after
    assert not SHOWN.search(before)
    assert "<|im_start|>user\ngo" in after


@of(Treatment.LEFT_OUT)
def test_it_is_left_out(row, place, lm):
    assert prompt(parsed(row.api, place, {"type": row.kind, **row.example}), lm) == prompt(parsed(row.api, place, None), lm)


@of(Treatment.REFUSED)
def test_it_is_refused_in_its_own_words(row, place):
    with pytest.raises(FieldError) as caught:
        parsed(row.api, place, {"type": row.kind, **row.example})
    assert row.text in str(caught.value)
    assert row.kind in str(caught.value)
    assert caught.value.field.endswith(".type")


@pytest.mark.parametrize("api", [CHAT, RESPONSES, MESSAGES])
@pytest.mark.parametrize("place", [SYSTEM, USER, ASSISTANT, RESULT, ITEM])
def test_an_unknown_type_ends_no_conversation(api, place, lm):
    """Blocks of a program or another server come with every later request; a user can write a block in another way."""
    if place == ITEM and api != RESPONSES:
        return
    block = {"type": "brand_new", "text": "a city", "id": "1"}
    if place in (SYSTEM, USER):
        with pytest.raises(FieldError, match="'brand_new' is not known"):
            parsed(api, place, block)
        return
    assert ("a city" in prompt(parsed(api, place, block), lm)) == (place != ITEM)


def test_the_page_is_made_from_the_table():
    """``python -m dflash.generation.messages.page > docs/request-blocks.md`` writes it."""
    assert (Path(__file__).parents[3] / "docs" / "request-blocks.md").read_text(encoding="utf-8") == page()


def types_of(annotation, found):
    """Add the values of ``type`` of all objects in a type of a client library."""
    for part in typing.get_args(annotation) or (annotation,):
        if typing.get_origin(part) is not None:
            types_of(part, found)
        elif isinstance(part, type):
            found.update(re.findall(r"[\"']([a-z_]+)[\"']", str(part.__annotations__.get("type", ""))))
    return found


def test_the_blocks_of_the_client_libraries_are_known():
    from anthropic.types.beta import beta_content_block_param, beta_tool_result_block_param
    from openai.types.responses import response_input_item_param

    known = {
        place: {kind for api, where, kind in TABLE if (api, where) == (MESSAGES, place)}
        for place in (USER, ASSISTANT, RESULT)
    }
    blocks = types_of(beta_content_block_param.BetaContentBlockParam, set())
    assert len(blocks) > 15
    assert blocks - known[USER] - known[ASSISTANT] - {"browser_state"} == set()
    results = types_of(beta_tool_result_block_param.Content, set())
    assert len(results) > 4
    assert results - known[RESULT] - {"browser_state"} == set()
    items = types_of(response_input_item_param.ResponseInputItemParam, set())
    assert len(items) > 20
    assert items - {kind for api, where, kind in TABLE if (api, where) == (RESPONSES, ITEM)} == set()


def test_a_document_without_text_is_refused_from_the_user_and_a_note_in_a_result(lm):
    block = {
        "type": "document",
        "title": "report",
        "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE"},
    }
    with pytest.raises(FieldError, match="text only"):
        parsed(MESSAGES, USER, block)
    assert "report\n[document]" in prompt(parsed(MESSAGES, RESULT, block), lm)


def test_a_compaction_replaces_all_before_it(lm):
    text = [{"type": "text", "text": each} for each in ("old", "new")]
    messages = [
        {"role": "user", "content": "old question"},
        {"role": "assistant", "content": [text[0], {"type": "compaction", "content": "summary"}, text[1]]},
        {"role": "user", "content": "go"},
    ]
    request = parse_messages({"messages": messages, "max_tokens": 4, "system": "Be brief."})
    assert [(message["role"], message["content"]) for message in request.messages] == [
        ("system", "Be brief."),
        ("user", "summary"),
        ("assistant", "new"),
        ("user", "go"),
    ]


def test_a_tool_is_added_with_its_definition(lm):
    """A tool that is declared to be deferred, and one that a message defines: both can be called."""
    other = {"name": "river", "description": "Flows.", "input_schema": {"type": "object", "properties": {}}}
    blocks = [
        {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "city"}},
        {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": other}},
    ]
    request = parse_messages(
        {
            "messages": [{"role": "user", "content": "q"}, {"role": "system", "content": blocks}],
            "max_tokens": 4,
            "tools": [CITY],
        }
    )
    text = prompt(request, lm, whole=True)
    assert text.index("<|im_start|>user\nq") < text.index('"Finds."') < text.index('"Flows."')
    assert {tool["function"]["name"] for tool in request.tools} == {"city", "river"}


def test_older_forms_of_chat_messages_are_read(lm):
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "function_call": {"name": "ls", "arguments": '{"path": "src"}'}},
        {"role": "function", "name": "ls", "content": "a.py"},
        {"role": "assistant", "content": None, "refusal": "I won't."},
        {"role": "assistant", "tool_calls": [{"id": "1", "type": "custom", "custom": {"name": "run", "input": 'echo "a"'}}]},
        {"role": "tool", "tool_call_id": "1", "content": "a"},
    ]
    text = prompt_text(parse_chat({"messages": messages}), lm.template)
    for part in (
        "<function=ls>\n<parameter=path>\nsrc\n",
        "<tool_response>\na.py\n",
        "I won't.",
        '<function=run>\n<parameter=input>\necho "a"\n',
    ):
        assert part in text, part


def test_messages_that_templates_know_stay_the_clients_objects():
    body = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}], "name": "me"},
            {"role": "assistant", "content": "b"},
        ]
    }
    assert all(one is two for one, two in zip(parse_chat(body).messages, body["messages"], strict=True))


def test_the_description_of_a_namespace_is_kept():
    space = {
        "type": "namespace",
        "name": "agents",
        "description": "Agents run beside you.",
        "tools": [
            {"type": "function", "name": name, "description": f"To {name}.", "parameters": {}} for name in ("stop", "ask")
        ],
    }
    tools = parse_responses({"input": "hi", "tools": [space]}, ResponseStore()).tools
    assert [tool["function"]["description"] for tool in tools] == [
        "To stop.\n\nAbout the tools of agents: Agents run beside you.",
        "To ask.",
    ]


def test_a_message_of_an_agent_names_it():
    item = {
        "type": "agent_message",
        "author": "/root/a",
        "recipient": "/root",
        "content": [{"type": "input_text", "text": "Done."}],
    }
    (message,) = parse_responses({"input": [item]}, ResponseStore()).messages
    assert message == {"role": "user", "content": "[message of /root/a to /root]\nDone."}


def test_continued_answers_of_messages(lm):
    """A last message of the assistant is continued, unless it has calls or thinking is on."""
    user, begun = {"role": "user", "content": "q"}, {"role": "assistant", "content": "The answer"}
    request = parse_messages({"messages": [user, begun], "max_tokens": 4})
    assert prompt_text(request, lm.template).endswith("</think>\n\nThe answer")
    thinking = parse_messages({"messages": [user, begun], "max_tokens": 4, "thinking": {"type": "adaptive"}})
    assert prompt_text(thinking, lm.template).endswith("The answer<|im_end|>\n<|im_start|>assistant\n<think>\n")
    called = {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "ls", "input": {}}]}
    request = parse_messages({"messages": [user, called], "max_tokens": 4})
    assert prompt_text(request, lm.template) == chat_text(lm.template, request.messages, settings=request.template_kwargs)
