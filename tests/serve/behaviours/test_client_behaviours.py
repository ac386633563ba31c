"""Behaviours of the server without which agents break, lose work or get slow; each has a test that fails without it.

| behaviour | tests |
| --- | --- |
| 1 first event before the prefill; real events in every silence; refusals before the stream | test_event_stream.py::test_a_stream_opens_at_once_and_is_never_silent, test_a_silence_in_a_call_has_events_of_the_api, responses/test_loop.py::test_refusals_come_before_the_stream |
| 2 unknown and unused fields are ignored | test_fields_that_mean_nothing_here_are_ignored |
| 3 one finish reason on every stream | test_event_stream.py::test_a_stream_has_one_reason_and_ends |
| 4 index, id and name in the deltas of calls | test_deltas_of_calls_say_which_call_they_are_of |
| 5 overflow in words that clients know, before any byte | test_a_prompt_beyond_the_context_is_refused_in_known_words |
| 6 max_tokens beyond the context is the rest of it | test_a_limit_beyond_the_context_is_the_rest_of_it |
| 7 Retry-After with 503 and 529 | test_a_full_server_says_when_to_come_back |
| 8 system text wherever it stands | test_system_text_stays_where_it_stands, anthropic/test_anthropic_request.py::test_system_messages_stay_where_they_are |
| 9 reasoning is sent and taken back | openai/test_chat_messages.py::test_reasoning_text_and_calls, test_reasoning_of_every_form_is_taken_back |
| 10 past calls of tools that are not offered | test_past_calls_need_no_offered_tool |
| 11 every form of content and of results of tools | test_content_has_many_forms |
| 12 several conversations and side requests share the cache | test_conversations_and_side_requests_keep_their_prefixes, test_conversations_are_known_by_the_names_that_clients_give |
| 13 a call that is cut stays open | openai/test_chat_demo.py::test_a_call_that_is_cut_stays_open, anthropic/test_messages.py::test_a_cut_call_is_not_mended, responses/test_format.py::test_a_cut_call_is_incomplete_and_its_arguments_are_never_final |
| 14 an error inside a stream in the form of the API | test_app.py::test_a_failure_in_the_middle_of_a_stream_is_its_last_event, anthropic/test_messages.py::test_an_error_in_the_middle_of_a_stream_is_its_last_event, responses/test_loop.py::test_a_failure_in_the_middle_is_the_last_event |
| 15 structured output and tools that must be called | test_schemas_of_clients_are_compiled, openai/test_chat_demo.py::test_a_tool_that_must_be_called, anthropic/test_messages_demo.py::test_a_tool_that_must_be_called, openai/test_chat_demo.py::test_the_openai_client_parses_structured_output, responses/test_endpoint.py::test_the_client_parses_a_schema, anthropic/test_messages_demo.py::test_an_output_of_a_schema |
| 16 tools that are no functions are skipped | test_tools_that_run_elsewhere_are_skipped |
| 17 every model name is served | test_every_model_name_is_served |
| 18 numbers in arguments stay as written | test_numbers_stay_as_the_model_wrote_them, ../generation/messages/test_chat_prompt.py::test_numbers_inside_of_objects_stay_as_they_were_written |
| 19 ends of blocks, items and responses | anthropic/test_anthropic_blocks.py::test_the_blocks_of_a_stream, responses/test_format.py::test_events_add_up_to_the_whole |
| 20 a last turn of the assistant is followed by a new one | test_a_last_turn_of_the_assistant_is_followed_by_a_new_one |
| 21 switches of thinking | test_switches_of_thinking |
| 22 whole answers in all APIs | test_chat.py::test_a_chat_completion_has_content_reason_and_usage, anthropic/test_anthropic_sdk.py::test_the_client_library_gets_a_message, responses/test_endpoint.py::test_the_client_library_gets_a_response |
| 23 the list of models while the engine works; HEAD of unknown paths | test_models_are_listed_while_the_engine_works, test_head_of_an_unknown_path |
| 24 several user messages in a row | test_users_may_follow_each_other |
| images are refused clearly, those in results become a note | test_images_are_refused_by_name, test_an_image_in_a_result_becomes_a_note |
"""  # noqa: E501 - a table

import json
import re
import threading
from pathlib import Path

import httpx
import pytest
from hang_guard import GUARD
from in_process import sent
from three_apis import CALL, CHAT, END, MESSAGES, PATHS, RESPONSES, TOOLS, body_of, events_of

from dflash.generation.load import start
from dflash.model.loading.settings import LoadSettings
from dflash.serve import limits
from dflash.serve.app import build_app
from dflash.serve.endpoints import Backend
from dflash.serve.limits import Limits


def test_the_table_names_tests_that_exist():
    rows = [line for line in __doc__.splitlines() if line.startswith("| ")][2:]
    assert [int(row.split()[1]) for row in rows if row.split()[1].isdigit()] == list(range(1, 25))
    here = Path(__file__).parent
    own = {name for file in here.glob("test_*.py") for name in re.findall(r"^def (test_\w+)\(", file.read_text(), re.M)}
    named = set()
    for row in rows:
        for test in row.split("|")[2].strip().split(", "):
            file, _, name = test.rpartition("::")
            assert name in own if not file else f"\ndef {name}(" in (here.parent / file).read_text(), row
            named.add(name)
    assert own - named == {"test_the_table_names_tests_that_exist"}


@pytest.mark.parametrize(("path", "beat"), [(RESPONSES, "response.in_progress"), (MESSAGES, "ping")])
def test_a_silence_in_a_call_has_events_of_the_api(app_of, serving, monkeypatch, path, beat):
    """Also while the prompt is read. The engine goes on after three of them each time."""
    monkeypatch.setattr(limits, "HEARTBEAT_SECONDS", 0.01)
    gates = threading.Semaphore(0), threading.Semaphore(0)
    script = [lambda: gates[0].acquire(timeout=GUARD), CALL, lambda: gates[1].acquire(timeout=GUARD), "/x" + END]
    kinds, waits = [], list(gates)
    body = body_of(path, tools=TOOLS[path], stream=True)
    with serving(app_of(*script)) as url, httpx.stream("POST", url + path, json=body, timeout=GUARD) as answer:
        for line in filter(lambda line: line.startswith("data: {"), answer.iter_lines()):
            kinds.append(json.loads(line[6:])["type"])
            if waits and kinds[-3:] == [beat] * 3:
                waits.pop(0).release()
                kinds.append("go")
    first, second = (at for at, kind in enumerate(kinds) if kind == "go")
    assert not any("delta" in kind for kind in kinds[:first])
    assert any("delta" in kind for kind in kinds[first:second]), "the call has begun"
    assert any("delta" in kind for kind in kinds[second:])
    assert kinds[-1] == ("message_stop" if path == MESSAGES else "response.completed")


UNUSED = {
    CHAT: {
        "store": True, "metadata": {"a": "b"}, "client_metadata": {}, "prompt_cache_key": "k", "verbosity": "low",
        "reasoning_effort": "high", "parallel_tool_calls": True, "service_tier": "auto", "modalities": ["text"],
    },
    RESPONSES: {
        "store": False, "metadata": {"a": "b"}, "client_metadata": {"x": 1}, "prompt_cache_key": "k",
        "include": ["reasoning.encrypted_content", "web_search_call.action.sources"], "verbosity": "low",
        "text": {"verbosity": "low"}, "reasoning": {"summary": "auto", "effort": "high"}, "truncation": "auto",
    },
    MESSAGES: {
        "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}, "output_config": {"effort": "high"},
        "metadata": {"user_id": "{}"}, "service_tier": "auto", "mcp_servers": [], "container": None,
        "thinking": {"type": "adaptive", "display": "updates"},
    },
}  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_fields_that_mean_nothing_here_are_ignored(ask, path):
    marks = {"cache_control": {"type": "ephemeral"}, "eager_input_streaming": True, "strict": None, "x": [1]}
    tools = [{**tool, **marks} for tool in TOOLS[path]]
    if path == CHAT:
        tools[0]["function"] = {
            **tools[0]["function"],
            "$schema": "http://json-schema.org/draft-07/schema#",
            "strict": False,
        }
    said = {"role": "assistant", "content": "Yes.", "refusal": None, "provider_specific_fields": {"a": 1}, "annotations": []}
    user = {"role": "user", "content": [{"type": "text", "text": "List the files.", **marks}], "name": "me"}
    fields = {**UNUSED[path], "never_heard_of": {"deep": [1]}, "tools": tools}
    headers = {"anthropic-beta": "a-2026-01-01,b", "anthropic-version": "2023-06-01", "x-session-id": "s"}
    plain = ask(path, body_of(path, [user, said, user], tools=TOOLS[path]), "</think>\n\nTwo.")
    wanted = ask.engine.prompts
    answer = ask(f"{path}?beta=true", body_of(path, [user, said, user], **fields), "</think>\n\nTwo.", headers=headers)
    assert (plain.status_code, answer.status_code) == (200, 200), answer.text
    assert "Two." in answer.text
    if path != CHAT:
        assert ask.engine.prompts == wanted


def test_deltas_of_calls_say_which_call_they_are_of(ask):
    body = body_of(CHAT, tools=TOOLS[CHAT], stream=True)
    events = events_of(ask(CHAT, body, CALL, "/a" + END, "\n" + CALL.partition("\n\n")[2], END).text)
    deltas = [call for event in events for call in event["choices"][0]["delta"].get("tool_calls", ())]
    assert {delta["index"] for delta in deltas} == {0, 1}
    for index in (0, 1):
        first, *rest = (delta for delta in deltas if delta["index"] == index)
        assert first["id"].strip()
        assert (first["type"], first["function"]["name"]) == ("function", "ls")
        assert rest
        assert "".join(delta["function"]["arguments"] for delta in rest).endswith(', "n": 1000.0}')
    assert len({delta["id"] for delta in deltas if "id" in delta}) == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_a_prompt_beyond_the_context_is_refused_in_known_words(ask, path, stream):
    answer = ask(path, body_of(path, [{"role": "user", "content": "word " * 400}], stream=stream), context=256)
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/json")
    error = answer.json()["error"]
    if path == MESSAGES:
        assert re.fullmatch(r"prompt is too long: \d+ tokens > 256 maximum", error["message"])
        assert error["type"] == "invalid_request_error"
    else:
        assert error["message"].startswith("This model's maximum context length is 256 tokens. However, ")
        assert error["code"] == "context_length_exceeded"


@pytest.fixture(scope="module")
def small():
    """A server with a small context and a prefix cache; posts to it."""
    loaded, engine_thread = start(
        "demo", LoadSettings(threads=1, context=1024, sequences=2, kv_bytes=64 << 20, prefix_cache=256 << 20)
    )
    app = build_app(Backend(engine_thread, loaded.tokenizer, loaded.template, ["demo"], limits=Limits(1024)))
    yield lambda path, body: sent(app, "POST", path, json=body)
    engine_thread.close()


@pytest.mark.parametrize("path", PATHS)
def test_a_limit_beyond_the_context_is_the_rest_of_it(small, path):
    name = "max_output_tokens" if path == RESPONSES else "max_tokens"
    body = body_of(path, [{"role": "user", "content": "word " * 980}], **{name: 32000})
    answer = small(path, body)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    assert 980 < sum(n for kind, n in usage.items() if type(n) is int and kind != "total_tokens") <= 1024


def test_conversations_and_side_requests_keep_their_prefixes(small):
    """Two conversations with tools, each with a request for a title beside it and a summary at its end."""
    quiet = {"chat_template_kwargs": {"enable_thinking": False}, "max_tokens": 4}

    def turn(messages, **fields):
        answer = small(CHAT, {"messages": messages, **quiet, **fields}).json()
        usage = answer["usage"]
        return answer["choices"][0]["message"], usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]

    histories = [[{"role": "user", "content": f"{name}. " + "Look at the files again. " * 8}] for name in ("One", "Two")]
    lengths = [0, 0]
    for number in range(3):
        for index, history in enumerate(histories):
            system = {"role": "system", "content": f"You are agent {index}. " + "Be careful with files. " * 12}
            message, n_prompt, n_cached = turn([system, *history], tools=TOOLS[CHAT])
            assert n_cached >= lengths[index] - 12, (number, index)
            lengths[index] = n_prompt
            history += [message, {"role": "user", "content": "And then?"}]
            turn([{"role": "system", "content": "Write a title."}, *history[:1]])
            turn([*history, {"role": "user", "content": "Summarize."}])


@pytest.mark.parametrize(("path", "status"), [(CHAT, 503), (RESPONSES, 503), (MESSAGES, 529)])
def test_a_full_server_says_when_to_come_back(ask, path, status):
    for stream in (False, True):
        answer = ask(path, body_of(path, stream=stream), full=True)
        assert answer.status_code == status
        assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize("path", PATHS)
def test_numbers_stay_as_the_model_wrote_them(ask, path):
    def pieces(value):
        for name, item in value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ()):
            if name in ("arguments", "delta", "partial_json") and isinstance(item, str):
                yield item
            yield from pieces(item)

    events = events_of(ask(path, body_of(path, tools=TOOLS[path], stream=True), CALL, END).text)
    assert '{"path": "src", "n": 1000.0}' in "".join(pieces(events))


def test_models_are_listed_while_the_engine_works(app_of, serving):
    gate = threading.Event()
    app = app_of(lambda: gate.wait(GUARD), "Hm.")
    with serving(app) as url, httpx.stream("POST", url + CHAT, json=body_of(CHAT, stream=True), timeout=GUARD) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        assert httpx.get(f"{url}/v1/models", timeout=GUARD).json()["data"][0]["id"] == "demo"
        gate.set()
        assert list(filter(None, lines))[-1] == "data: [DONE]"
