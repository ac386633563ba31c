"""Recorded requests of real clients to chat completions: all are rendered, and a session keeps its prefix."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from packed import packed_lines

from dflash.decode.drafters import Strategy
from dflash.serve.limits import Limits
from dflash.serve.openai.chat_request import parse_chat
from dflash.serve.preparing.completions import ReadRequest

FILE = Path(__file__).parents[2] / "data" / "chat" / "requests.jsonl.xz"
RECORDED = packed_lines(FILE)
CONSTRAINED = ("response_format", "tool_choice")


def read(lm, body):
    return ReadRequest.of(parse_chat(body), lm.tokenizer, lm.template, Limits(lm.model.config.context))


def texts(message):
    """Return the texts of a message that its prompt must contain."""
    content = message.get("content") or ""
    yield from [content] if isinstance(content, str) else [part["text"] for part in content]
    for call in message.get("tool_calls") or []:
        yield f"<function={call['function']['name']}>"
        yield from (value for value in json.loads(call["function"]["arguments"]).values() if isinstance(value, str))


@pytest.mark.parametrize("record", RECORDED, ids=lambda record: f"{record['session']}-{record['n']}")
def test_every_recorded_body_is_rendered(lm, record):
    body = record["body"]
    ready = read(lm, body)
    text = lm.tokenizer.decode(ready.prompts[0])
    for message in body["messages"]:
        assert all(words.strip() in text for words in texts(message))
    assert all(f'"name": "{tool["function"]["name"]}"' in text for tool in body.get("tools") or [])
    (completion,) = ready.completions(Strategy())
    strict = any(tool["function"].get("strict") for tool in body.get("tools") or [])
    forced = any(body.get(name) not in (None, "auto") for name in CONSTRAINED)
    assert (completion.session.grammar is not None) == (strict or forced)


@pytest.mark.parametrize(
    "name",
    ["pi/continue", "pi/parallel", "mini/tools", "cline/parallel", "copilot/parallel", "qwen/parallel", "sdk/smol_tools"],
)
def test_a_session_keeps_its_prefix(lm, name):
    """With the reasoning preserved, each prompt begins with the one before, without the turn that the model begins."""
    bodies = [record["body"] for record in RECORDED if record["session"] == name]
    prompts = [lm.tokenizer.decode(read(lm, {**body, "preserve_thinking": True}).prompts[0]) for body in bodies]
    assert len(prompts) > 1
    for before, after in pairwise(prompts):
        assert after.startswith(before.removesuffix("<think>\n"))
