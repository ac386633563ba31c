"""Recorded requests of real clients: all of them can be rendered, and a session keeps its prefix."""

from itertools import pairwise
from pathlib import Path

import pytest
from packed import packed_lines

from dflash.serve.anthropic.request import parse_messages
from dflash.serve.preparing.prompts import prompt_ids

FILE = Path(__file__).parents[2] / "data" / "messages" / "requests.jsonl.xz"
RECORDED = packed_lines(FILE)
WITH_IMAGE = "claude/image"


def session(name):
    return [record["body"] for record in RECORDED if record["session"] == name]


@pytest.fixture(scope="module")
def prompt(lm):
    """Returns the prompt of a body as text."""

    def render(body, **settings):
        request = parse_messages(body, counting="max_tokens" not in body, **settings)
        (ids,) = prompt_ids(request, lm.tokenizer, lm.template, lm.model.config.context)
        return lm.tokenizer.decode(ids)

    return render


def without_turn(text):
    """Return a prompt without the beginning of the model's turn."""
    return text.rpartition("<|im_start|>assistant\n")[0]


@pytest.mark.parametrize("record", RECORDED, ids=lambda record: f"{record['session']}-{record['n']}")
def test_every_recorded_body_is_rendered(prompt, record):
    text = prompt(record["body"])
    assert ("[image]" in text) == (record["session"] == WITH_IMAGE)
    for message in record["body"]["messages"]:
        blocks = message["content"] if isinstance(message["content"], list) else [{"text": message["content"]}]
        for words in (block["text"] for block in blocks if "text" in block):
            assert words.strip() in text
    assert "x-anthropic-billing-header" not in text


@pytest.mark.parametrize(
    ("name", "n_pairs"),
    [
        ("claude/toolsearch", 2),
        ("claude/subagent", 1),
        ("claude/reasoning", 1),
        ("copilot/anthropic", 1),
        ("pi/api-anthropic-messages", 1),
    ],
)
def test_a_session_keeps_its_prefix(prompt, name, n_pairs):
    texts = [prompt(body) for body in session(name)]
    shared = [later.startswith(without_turn(earlier)) for earlier, later in pairwise(texts)]
    assert shared == [True] * n_pairs


def test_compaction_asks_with_the_same_prefix_and_begins_anew_with_the_same_tools(prompt):
    before, asking, after = map(prompt, session("claude/overflow-mid"))
    shared = without_turn(before).partition("<|im_start|>assistant\n")[0]
    assert asking.startswith(shared)
    assert "<tool_response>" in asking.removeprefix(shared)
    system = before.partition("<|im_start|>user")[0]
    assert after.startswith(system)


def test_sessions_share_the_system_prompt_without_the_billing_line(prompt):
    earlier, _, later = session("claude/overflow-mid")
    assert earlier["system"][0] != later["system"][0]
    systems = [prompt(body).partition("<|im_start|>user")[0] for body in (earlier, later)]
    assert systems[0] == systems[1]
    systems = [prompt(body, keep_billing_header=True).partition("<|im_start|>user")[0] for body in (earlier, later)]
    assert systems[0] != systems[1]


def test_a_deferred_tool_is_defined_where_it_was_found(prompt):
    first, second, _ = map(prompt, session("claude/toolsearch"))
    tools = second.partition("</tools>")[0]
    assert first.partition("</tools>")[0] == tools
    for name in ("WebFetch", "WebSearch"):
        assert f'"name": "{name}"' not in tools
        found = second.partition("<tool_response>")[2]
        assert f'"name": "{name}"' in found
        assert "DeferredToolPlaceholder" not in second
