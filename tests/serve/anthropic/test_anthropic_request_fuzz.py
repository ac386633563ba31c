"""Damaged bodies of the Messages API: each is read, or refused with an error that names a field."""

import copy
import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dflash.errors import RequestError
from dflash.serve.anthropic.request import parse_messages
from dflash.serve.requests import ChatRequest

FILE = Path(__file__).parents[2] / "data" / "messages" / "requests.jsonl"
BODIES = [json.loads(line)["body"] for line in FILE.read_text().splitlines()]
VALUES = [None, True, 0, -1, 1.5, "", "x", [], {}, [None], ["x"], [{}], {"type": "x"}, {"type": None}, [{"type": "text"}]]


def places(value, path=()):
    """Yield the path of every value in a body."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


@st.composite
def damaged(draw):
    """A recorded body with another value, or none, in up to three places."""
    body = copy.deepcopy(draw(st.sampled_from(BODIES)))
    for _ in range(draw(st.integers(1, 3))):
        *path, last = draw(st.sampled_from(list(places(body))))
        holder = body
        for key in path:
            holder = holder[key]
        if draw(st.booleans()):
            holder[last] = copy.deepcopy(draw(st.sampled_from(VALUES)))
        else:
            del holder[last]
    return body


@given(damaged())
def test_a_damaged_body_is_read_or_refused(body):
    before = copy.deepcopy(body)
    try:
        request = parse_messages(body)
    except RequestError as error:
        assert str(error).split(":")[0].split("[")[0].split(".")[0] in {*before, "messages", "max_tokens", "tool_choice"}
    else:
        assert isinstance(request, ChatRequest)
        assert all(message["role"] in ("system", "user", "assistant", "tool") for message in request.messages)
    assert body == before
