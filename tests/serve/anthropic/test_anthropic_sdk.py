"""The official `anthropic` client against a server with the demo model."""

import pytest
from hang_guard import GUARD

anthropic = pytest.importorskip("anthropic", reason="needs the anthropic package")

WEATHER = {
    "name": "get_weather",
    "description": "Current weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CAPITAL = [{"role": "user", "content": "What is the capital of Japan?"}]
OSLO = [{"role": "user", "content": "What is the weather in Oslo?"}]
SETTINGS = {"model": "demo", "max_tokens": 100}


@pytest.fixture
def claude(server):
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=GUARD) as client:
        yield client


def test_the_client_library_gets_a_message(claude):
    message = claude.messages.create(**SETTINGS, messages=CAPITAL, system="Be brief.")
    assert [block.text for block in message.content] == ["Tokyo is the capital of Japan."]
    assert (message.stop_reason, message.role, message.type, message.model) == ("end_turn", "assistant", "message", "demo")
    assert message.usage.output_tokens > 1
    assert claude.messages.count_tokens(model="demo", messages=CAPITAL, system="Be brief.").input_tokens == (
        message.usage.input_tokens
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": CAPITAL},
        {"messages": CAPITAL, "thinking": {"type": "adaptive"}},
        {"messages": OSLO, "thinking": {"type": "enabled", "budget_tokens": 5}},
        {"messages": OSLO, "tools": [WEATHER]},
        {"messages": CAPITAL, "max_tokens": 3},
        {"messages": CAPITAL, "stop_sequences": [" of"]},
    ],
)
def test_a_stream_adds_up_to_the_message(claude, fields):
    whole = claude.messages.create(**{**SETTINGS, **fields})
    with claude.messages.stream(**{**SETTINGS, **fields}) as stream:
        events = list(stream)
        message = stream.get_final_message()
    left_out = {"id": True, "content": {"__all__": {"id"}}}
    unset = {"exclude_none": True}  # the client's model of a streamed block has fields that a whole one has not
    assert message.model_dump(exclude=left_out, **unset) == whole.model_dump(exclude=left_out, **unset)
    assert events[0].type == "message_start"
    assert events[-1].type == "message_stop"


def test_errors_are_those_of_the_client(claude):
    with pytest.raises(anthropic.BadRequestError, match="can't be read") as caught:
        claude.messages.create(**SETTINGS, messages=[{"role": "user", "content": [{"type": "image", "source": {}}]}])
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    assert caught.value.request_id.startswith("req_")
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > \d+ maximum"):
        claude.messages.create(**SETTINGS, messages=[{"role": "user", "content": "word " * 40_000}])
