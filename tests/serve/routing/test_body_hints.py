"""Hints from bodies that clients sent."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from packed import packed_lines

from dflash.serve.routing.body_hints import hints_of

DATA = Path(__file__).parents[2] / "data"
TOOL = {"type": "function", "function": {"name": "look", "description": "x" * 300, "parameters": {"type": "object"}}}
HISTORY = [{"role": "user", "content": "Read the file. " * 40}, {"role": "assistant", "content": "It is empty. " * 40}]


def read(path, body, block=64):
    return hints_of(path, json.dumps(body).encode(), block=block)


def n_common(one, other):
    return next((n for n, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other)))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_a_later_turn_begins_with_the_blocks_of_an_earlier_one(path):
    first = read(path, {"messages": HISTORY[:1], "max_tokens": 9})
    later = read(path, {"messages": [*HISTORY, HISTORY[0]], "max_tokens": 9, "temperature": 0.5})
    assert len(first.blocks) > 8
    assert later.blocks[: len(first.blocks)] == first.blocks


def test_tools_come_before_messages_as_in_the_template():
    with_tool = read("/v1/chat/completions", {"messages": HISTORY, "tools": [TOOL]})
    other = read("/v1/chat/completions", {"tools": [TOOL], "messages": [{"role": "user", "content": "Else. " * 50}]})
    assert n_common(with_tool.blocks, other.blocks) >= 300 // 64
    assert n_common(with_tool.blocks, read("/v1/chat/completions", {"messages": HISTORY}).blocks) == 0


def test_the_same_conversation_in_two_apis_agrees():
    instructions = "Be brief and exact. " * 20
    chat = read("/v1/chat/completions", {"messages": [{"role": "system", "content": instructions}, *HISTORY[:1]]})
    responses = read("/v1/responses", {"instructions": instructions, "input": HISTORY[0]["content"]})
    assert n_common(chat.blocks, responses.blocks) >= len(instructions) // 64


def test_what_changes_between_turns_without_changing_the_prompt_is_left_out():
    def body(mark, billing):
        part = {"type": "text", "text": HISTORY[0]["content"], **mark}
        system = [{"type": "text", "text": f"x-anthropic-billing-header: {billing}"}, {"type": "text", "text": "Be brief."}]
        return {"system": system, "messages": [{"role": "user", "content": [part]}], "max_tokens": 9}

    marked = read("/v1/messages", body({"cache_control": {"type": "ephemeral"}}, "cch=1;"))
    assert marked.blocks
    assert marked == read("/v1/messages", body({}, "cch=2;"))


def test_deferred_tools_are_no_part_of_the_beginning():
    deferred = {**TOOL, "defer_loading": True}
    plain = read("/v1/chat/completions", {"messages": HISTORY})
    assert read("/v1/chat/completions", {"messages": HISTORY, "tools": [deferred]}).blocks == plain.blocks


@pytest.mark.parametrize("prompt", ["import os\n" * 50, [list(range(1000, 1200))], [["import os\n" * 50][0], "second"]])
def test_prompts_of_completions_have_blocks(prompt):
    assert read("/v1/completions", {"prompt": prompt}).blocks


def test_the_session_is_read_from_body_and_headers():
    body = {"messages": HISTORY, "user": "u", "metadata": {"user_id": "m"}}
    assert read("/v1/chat/completions", {**body, "prompt_cache_key": "k"}).session == "k"
    assert read("/v1/chat/completions", body).session == "m"
    assert hints_of("/v1/chat/completions", b'{"messages": 3}', {"x-session-id": "s"}).session == "s"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", b"{"),
        ("/v1/chat/completions", b"[1]"),
        ("/v1/chat/completions", b'{"messages": 3}'),
        ("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "\\ud800"}]}'),
        ("/v1/responses", b'{"input": "x", "previous_response_id": "resp_1"}'),
        ("/v1/messages", b""),
        ("/tokenize", b'{"content": "x"}'),
    ],
)
def test_what_would_be_refused_gives_no_blocks(path, body):
    assert hints_of(path, body).blocks == ()


@pytest.mark.parametrize(("folder", "path"), [("chat", "/v1/chat/completions"), ("messages", "/v1/messages")])
def test_recorded_sessions_share_prefixes(folder, path):
    """Requests of one recorded session begin alike."""
    sessions = {}
    for each in packed_lines(DATA / folder / "requests.jsonl.xz"):
        sessions.setdefault(each["session"], []).append(read(path, each["body"], 32).blocks)
    pairs = [(one, other) for found in sessions.values() for one, other in pairwise(found) if one and other]
    shares = [n_common(one, other) / len(one) for one, other in pairs]
    assert len(shares) >= 5
    assert sum(share > 0.5 for share in shares) > 0.6 * len(shares)
