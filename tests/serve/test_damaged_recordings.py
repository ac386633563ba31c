"""Recorded bodies of clients with damage: each is read, or refused with an error that names a field."""

import copy
import random
import re
from functools import partial
from pathlib import Path

import pytest
from api_bodies import damage
from packed import packed_lines

from dflash.errors import RequestError
from dflash.generation.messages.fields import FieldError
from dflash.serve.anthropic.request import parse_messages
from dflash.serve.http_errors import Problem
from dflash.serve.openai.chat_request import parse_chat
from dflash.serve.responses.request import parse_responses
from dflash.serve.responses.store import ResponseStore

DATA = Path(__file__).parents[1] / "data"
PARSERS = {"chat": parse_chat, "messages": parse_messages, "responses": partial(parse_responses, store=ResponseStore())}
ROLES = {"user", "system", "developer", "assistant", "tool"}
"""Roles after parsing. Those of chat completions are checked by the template."""

REQUIRED = {"messages", "max_tokens", "input", "tool_choice"}


@pytest.mark.parametrize("api", PARSERS)
def test_a_damaged_body_is_read_or_refused(api):
    rng, outcomes = random.Random(api), set()
    for each in packed_lines(DATA / api / "requests.jsonl.xz"):
        recorded = each["body"]
        for _ in range(20):
            body = copy.deepcopy(recorded)
            for _ in range(rng.randint(1, 3)):
                damage(rng, body)
            before = copy.deepcopy(body)
            try:
                request = PARSERS[api](body)
            except (RequestError, Problem) as error:
                outcomes.add("refused")
                assert "\n" not in str(error)
                if isinstance(error, FieldError):
                    assert re.split(r"[.\[]", error.field)[0] in {*before, *REQUIRED}
            else:
                outcomes.add("read")
                assert api == "chat" or {message["role"] for message in request.messages} <= ROLES
                assert all(isinstance(message.get("content") or "", str | list) for message in request.messages)
                assert all(isinstance(tool["function"]["name"], str) for tool in request.tools or ())
            assert body == before
    assert outcomes == {"read", "refused"}
