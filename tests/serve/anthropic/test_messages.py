"""``/v1/messages`` over an engine with scripted output."""

from types import SimpleNamespace

import pytest
from in_process import sent
from message_stream import fold
from serve_fakes import ScriptedEngine
from streams import named_events

from dflash.cli.serve import main
from dflash.errors import KernelError, QueueFull
from dflash.serve.http_errors import INTERNAL
from dflash.serve.limits import Limits

LS = {"name": "ls", "input_schema": {"type": "object", "properties": {"path": {"type": "string"}, "n": {"type": "number"}}}}
USER = {"role": "user", "content": "List the files."}
BODY = {"model": "m", "max_tokens": 100, "messages": [USER], "tools": [LS], "thinking": {"type": "adaptive"}}
CALL = ["<tool_call>\n<function=ls>\n<parameter=path>\nsrc", "/é\n</parameter>\n<parameter=n>\n1.", "0\n</parameter>\n"]
CLOSED = "</function>\n</tool_call>"


class Ending(ScriptedEngine):
    """Ends with the reason ``"length"`` after a script whose last item is None."""

    def _end(self, session, reason):
        return super()._end(session, "length" if reason == "stop" and None in self.script else reason)


class Full(ScriptedEngine):
    """Takes no more sequences."""

    def add_all(self, sessions):
        raise QueueFull(f"{len(sessions)} sequences are too many; try again later")


class Cached(ScriptedEngine):
    """Finds the first seven tokens of every prompt in its prefix cache."""

    def add_all(self, sessions):
        super().add_all(sessions)
        for session in sessions:
            session.n_cached = 7


@pytest.fixture
def ask(app_of):
    """Sends one request to an app over a scripted engine."""

    def send(*script, engine=Ending, path="/v1/messages?beta=true", headers=None, context=8192, server=None, **fields):
        app = app_of(*script, engine=engine, limits=Limits(context), **(server or {}))
        body = {name: value for name, value in {**BODY, **fields}.items() if value is not None}
        return sent(app, "POST", path, json=body, headers=headers)

    return send


def without_ids(message):
    """Return a message without the identifiers that differ from response to response."""
    content = [{name: value for name, value in block.items() if name != "id"} for block in message["content"]]
    return {**message, "id": "", "content": content}


SCRIPTS = {
    "text": (["Two ", "files."], "end_turn"),
    "nothing": ([], "end_turn"),
    "thinking": (["Hm", "m.\n</think>\n\nTwo", " files."], "end_turn"),
    "call": (["Hm.\n</think>\n\nI look.\n\n", *CALL, CLOSED], "tool_use"),
    "two calls": (["</think>\n\n", *CALL, CLOSED, "\n", *CALL, CLOSED], "tool_use"),
    "cut text": (["</think>\n\nTwo fi", None], "max_tokens"),
    "cut thinking": (["Hm", None], "max_tokens"),
    "cut call": (["</think>\n\n", *CALL[:2], None], "max_tokens"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_folded_stream_is_the_whole_message(ask, name):
    script, reason = SCRIPTS[name]
    whole = ask(*script).json()
    events = named_events(ask(*script, stream=True))
    assert without_ids(fold(events)) == without_ids(whole)
    assert whole["stop_reason"] == reason
    assert whole["stop_sequence"] is None
    assert [event["type"] for event in events[:2]] == ["message_start", "ping"]
    assert (whole["type"], whole["role"], whole["model"]) == ("message", "assistant", "m")


def test_a_call_is_streamed_as_json(ask):
    thinking, text, call = ask(*SCRIPTS["call"][0]).json()["content"]
    assert thinking == {"type": "thinking", "thinking": "Hm.", "signature": thinking["signature"]}
    assert thinking["signature"]
    assert text["text"].strip() == "I look."
    assert (call["type"], call["name"]) == ("tool_use", "ls")
    assert call["input"] == {"path": "src/é", "n": 1.0}
    events = named_events(ask(*SCRIPTS["call"][0], stream=True))
    pieces = [event["delta"]["partial_json"] for event in events if event.get("delta", {}).get("type") == "input_json_delta"]
    assert len(pieces) > 1
    assert "".join(pieces) == '{"path": "src/é", "n": 1.0}'


def test_a_cut_call_is_not_mended(ask):
    events = named_events(ask(*SCRIPTS["cut call"][0], stream=True))
    written = "".join(event["delta"].get("partial_json", "") for event in events if event["type"] == "content_block_delta")
    assert written == '{"path": "src/é", "n": 1.'
    assert [event["type"] for event in events[-3:]] == ["content_block_stop", "message_delta", "message_stop"]
    (call,) = ask(*SCRIPTS["cut call"][0]).json()["content"]
    assert call["input"] == {"__unparsedToolInput": {"raw": written, "len": len(written)}}


def test_calls_to_a_deferred_tool_are_calls(ask):
    (call,) = ask("</think>\n\n", *CALL, CLOSED, tools=[{**LS, "defer_loading": True}]).json()["content"]
    assert (call["type"], call["name"]) == ("tool_use", "ls")


def test_only_one_call_if_the_client_wants_one(ask):
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    message = ask("</think>\n\n", *CALL, CLOSED, tool_choice=choice).json()
    assert [block["type"] for block in message["content"]] == ["tool_use"]
    assert message["stop_reason"] == "tool_use"


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_sequence_is_named(ask, stream):
    answer = ask("</think>\n\nOne END two", stop_sequences=["STOP", "END"], stream=stream)
    message = fold(named_events(answer)) if stream else answer.json()
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "END")
    assert message["content"][-1]["text"] == "One "


@pytest.mark.parametrize("stream", [False, True])
def test_a_complete_call_counts_more_than_a_stop_sequence(ask, stream):
    """A client that receives the reason `stop_sequence` would not run the call."""
    answer = ask(*CALL, CLOSED, "\nEND two", stop_sequences=["END"], stream=stream)
    message = fold(named_events(answer)) if stream else answer.json()
    assert (message["stop_reason"], message["stop_sequence"]) == ("tool_use", None)
    answer = ask(*CALL, CLOSED, "\n", *CALL, "END", stop_sequences=["END"], stream=stream)
    message = fold(named_events(answer)) if stream else answer.json()
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "END")


def test_events_count_tokens(ask):
    usage = ask("</think>\n\nTwo").json()["usage"]
    counted = ask(path="/v1/messages/count_tokens", max_tokens=None).json()
    assert counted == {"input_tokens": usage["input_tokens"]}
    assert usage["input_tokens"] > 100
    assert usage["cache_read_input_tokens"] == 0
    start = named_events(ask("Two", stream=True))[0]["message"]
    assert start["usage"]["input_tokens"] == usage["input_tokens"]
    assert (start["content"], start["stop_reason"]) == ([], None)


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_from_the_prefix_cache_are_counted_apart(ask, stream):
    counted = ask(path="/v1/messages/count_tokens").json()["input_tokens"]
    answer = ask("Two", engine=Cached, stream=stream)
    usage = (fold(named_events(answer)) if stream else answer.json())["usage"]
    assert (usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]) == (7, 0)
    assert usage["input_tokens"] == counted - 7


def test_a_prompt_beyond_the_context_is_counted_and_refused(ask):
    counted = ask(path="/v1/messages/count_tokens", context=100).json()["input_tokens"]
    assert counted > 100
    answer = ask("Two", context=100)
    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "type": "invalid_request_error",
        "message": f"prompt is too long: {counted} tokens > 100 maximum",
    }


def test_an_error_in_the_middle_of_a_stream_is_its_last_event(ask, caplog):
    events = named_events(ask("</think>\n\n", *CALL, KernelError("the device said no"), stream=True))
    assert events[-1]["error"] == {"type": "api_error", "message": INTERNAL}
    types = [event["type"] for event in events]
    assert types.count("error") == 1
    assert not {"content_block_stop", "message_delta", "message_stop"} & set(types), "the call must not look whole"
    assert "said no" in caplog.text


@pytest.mark.parametrize(
    ("settings", "status", "kind"),
    [
        ({"max_tokens": "many"}, 400, "invalid_request_error"),
        ({"headers": {"x-api-key": "wrong"}, "server": {"api_key": "secret"}}, 401, "authentication_error"),
        ({"system": "a" * 600_000, "context": 100}, 413, "request_too_large"),
        ({"engine": Full}, 529, "overloaded_error"),
        ({"engine": Full, "stream": True}, 529, "overloaded_error"),
    ],
)
def test_errors_have_status_type_and_request_id_of_the_messages_api(ask, settings, status, kind):
    answer = ask(**settings)
    body = answer.json()
    assert answer.status_code == status
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert body["request_id"] == answer.headers["request-id"]
    assert ("retry-after" in answer.headers) == (status == 529)


def test_a_schema_that_can_not_be_compiled(ask):
    loop = {"a": {"$ref": "#/$defs/loop"}}
    schema = {"type": "object", "properties": loop, "required": ["a"], "$defs": {"loop": {"$ref": "#/$defs/loop"}}}
    answer = ask(output_config={"format": {"type": "json_schema", "schema": schema}}, tools=None)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("output_config.format: ")


def test_an_error_of_the_server(ask, caplog):
    answer = ask(KernelError("the device said no"))
    assert answer.status_code == 500
    assert answer.json()["error"] == {"type": "api_error", "message": INTERNAL}
    assert "said no" in caplog.text


@pytest.mark.parametrize("headers", [{"x-api-key": "secret"}, {"Authorization": "Bearer secret"}])
def test_the_key_of_the_server(ask, headers):
    assert ask("Two", headers=headers, server={"api_key": "secret"}).status_code == 200


def test_the_billing_line_is_an_option_of_the_server(ask, monkeypatch, lm):
    line = "x-anthropic-billing-header: cc_version=2.1.330.c4f; cc_entrypoint=cli;"

    def n_tokens(system, **server):
        return ask(path="/v1/messages/count_tokens", system=system, server=server).json()["input_tokens"]

    assert n_tokens(line) == n_tokens(None) < n_tokens(line, keep_billing_header=True)
    options = []
    engine = SimpleNamespace(model=lm.model, max_active=1, prefix_cache=None)
    worker = SimpleNamespace(prepare=id, close=bool, error=None, engine=engine)
    monkeypatch.setattr("dflash.generation.load.start", lambda *_, **__: (lm, worker))
    monkeypatch.setattr("dflash.serve.app.build_app", lambda _, **given: options.append(given["keep_billing_header"]))
    monkeypatch.setattr("dflash.serve.server.Server", lambda *_, **__: SimpleNamespace(run=bool))
    assert [main(["demo"]), main(["demo", "--keep-billing-header"])] == [0, 0]
    assert options == [False, True]
