"""Streams of any API: the first event, heartbeats, the end on every path, and clients that read slowly."""

import asyncio
import json
import re
import threading
from functools import partial
from types import SimpleNamespace

import httpx
import pytest
from chat_stream import events_of, folded
from hang_guard import GUARD, wait_until
from in_process import client_of, sent
from loops import BOTH_LOOPS
from serve_fakes import ScriptedEngine

from dflash.decode.session import Step
from dflash.errors import KernelError
from dflash.generation.completion import Delta
from dflash.serve import event_stream, limits
from dflash.serve.dialect import ServerEvent
from dflash.serve.event_stream import EventStream

CHAT_PATH = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"properties": {"at": {"type": "string"}}}}}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "tools": [TOOL], "stream": True}
CALL = "</think>\n\n<tool_call>\n<function=look>\n<parameter=at>\n"
CLOSED = "\n</parameter>\n</function>\n</tool_call>"


class Gate:
    """Item of a script that holds the engine until the gate is open."""

    def __init__(self):
        self.reached, self.go = threading.Event(), threading.Event()

    def __call__(self):
        self.reached.set()
        assert self.go.wait(GUARD)


@BOTH_LOOPS
def test_a_stream_opens_at_once_and_is_never_silent(app_of, serving, monkeypatch):
    """Heartbeats come while the prompt is read, and again inside the arguments of a call."""
    monkeypatch.setattr(limits, "HEARTBEAT_SECONDS", 0.01)
    prefill, middle = Gate(), Gate()
    lines, beats = [], []
    app = app_of(prefill, CALL + "a", middle, "b" + CLOSED)
    with serving(app) as url, httpx.stream("POST", url + CHAT_PATH, json=CHAT, timeout=GUARD) as answer:
        assert answer.status_code == 200
        for line in filter(None, answer.iter_lines()):
            lines.append(line)
            beats.append(len(lines) > 1 and '"delta":{"content":""}' in line)
            if not prefill.go.is_set() and sum(beats) == 3:
                assert prefill.reached.wait(GUARD)
                prefill.go.set()
                before = len(lines)
            elif prefill.go.is_set() and sum(beats[before:]) == 3:
                middle.go.set()
    assert beats[:4] == [False, True, True, True]
    message, reason = folded(events_of("".join(f"{line}\n\n" for line in lines)))
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"at": "ab"}
    assert (message["content"], reason) == (None, "tool_calls")


@BOTH_LOOPS
def test_the_first_chunk_of_a_completion_has_its_first_token(app_of, serving, monkeypatch):
    """Programs that measure servers take any chunk with a choice for a token. Empty lines come while the prompt is read."""
    monkeypatch.setattr(limits, "HEARTBEAT_SECONDS", 0.01)
    prefill, body = Gate(), {"prompt": "a", "stream": True}
    with (
        serving(app_of(prefill, "Hello")) as url,
        httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=GUARD) as answer,
    ):
        assert answer.status_code == 200
        lines = answer.iter_lines()
        assert [next(lines) for _ in range(3)] == ["", "", ""]
        prefill.go.set()
        first, *_, last = filter(None, lines)
    assert json.loads(first.removeprefix("data: "))["choices"][0]["text"] == "Hello"
    assert last == "data: [DONE]"


def test_silence_is_counted_from_the_last_event(monkeypatch):
    """Steps without an event, such as those of a long prompt, do not postpone the heartbeat."""
    clock, waits = SimpleNamespace(now=100.0), []
    script = [(4.0, True), (5.0, True), (1.0, False), (10.0, False), (3.0, "text")]

    class Running:
        n_open, completions = 1, ()

        async def next(self, timeout):
            waits.append(timeout)
            took, item = script.pop(0)
            clock.now += took
            self.n_open = len(script)
            return (0, Delta(item if isinstance(item, str) else "", (), Step([]))) if item else None

    answer = SimpleNamespace(
        opening=lambda: [ServerEvent("opening")],
        delta=lambda _, delta: [ServerEvent(delta.text)] if delta.text else [],
        heartbeat=lambda: ServerEvent("beat"),
        closing=lambda _: [ServerEvent("closing")],
    )
    loop = SimpleNamespace(time=lambda: clock.now)
    fake = SimpleNamespace(get_running_loop=lambda: loop, to_thread=asyncio.to_thread)
    monkeypatch.setattr(event_stream, "asyncio", fake)

    async def events():
        sent = b"".join([events async for events in EventStream(Running(), answer)._events()]).decode()
        return re.findall("data: (.*)", sent)

    assert asyncio.run(events()) == ["opening", "beat", "beat", "text", "closing"]
    assert waits == [10.0, 6.0, 1.0, 10.0, 10.0]


@pytest.mark.parametrize(
    "cut", ["", "Thinking", "</think>\n\nHello", CALL, f"{CALL}a\n</parameter>\n</function>\n</tool_call>"]
)
@pytest.mark.parametrize("finish", ["stop", "length"])
def test_a_stream_has_one_reason_and_ends(app_of, cut, finish):
    app = app_of(cut, engine=partial(ScriptedEngine, finish=finish))
    events = events_of(sent(app, "POST", CHAT_PATH, json=CHAT).text)
    message, reason = folded(events)
    called = bool(message.get("tool_calls"))
    assert reason == ("tool_calls" if called and finish == "stop" else finish)
    whole = sent(app, "POST", CHAT_PATH, json={**CHAT, "stream": False}).json()["choices"][0]
    assert whole["finish_reason"] == reason
    assert whole["message"]["content"] == message["content"]
    if cut == CALL:
        assert message["tool_calls"][0]["function"]["arguments"] == '{"at": "'


@pytest.mark.parametrize("text", ["", "Thinking", f"{CALL}a"])
def test_a_stream_that_fails_says_so_and_ends(app_of, caplog, text):
    answer = sent(app_of(text, KernelError("the device said no")), "POST", CHAT_PATH, json=CHAT)
    assert answer.status_code == 200
    *chunks, last = events_of(answer.text)
    assert last["error"]["type"] == "server_error"
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    assert "said no" in caplog.text


def test_a_format_that_fails_ends_the_stream_and_the_run(app_of, monkeypatch, caplog):
    monkeypatch.setattr("dflash.serve.openai.chat_format.ChatFormat.delta", lambda *_: 1 // 0)
    app = app_of("a", *["b"] * 1000)
    *_, last = events_of(sent(app, "POST", CHAT_PATH, json=CHAT).text)
    assert last["error"]["type"] == "server_error"
    wait_until(lambda: not app.engine_thread.engine.busy)
    assert "ZeroDivisionError" in caplog.text


def test_streams_of_a_closing_server_end(app_of):
    gate = Gate()
    app = app_of("Thinking", gate, *["more"] * 1000)

    async def run():
        async with client_of(app) as client:
            answer = asyncio.create_task(client.post(CHAT_PATH, json=CHAT))
            await asyncio.to_thread(gate.reached.wait, GUARD)
            closing = asyncio.create_task(asyncio.to_thread(app.engine_thread.close))
            while app.engine_thread.alive:
                await asyncio.sleep(0)
            gate.go.set()
            await closing
            return await answer

    *_, last = events_of(asyncio.run(run()).text)
    assert last["error"]["code"] == "shutting_down"


def test_a_slow_reader_delays_no_other_and_gets_everything(app_of):
    """The stream's client takes nothing after the first event, until the engine has finished and another was answered."""
    app = app_of("</think>\n\nx", *["y"] * 500)
    body, sent = [json.dumps(CHAT).encode()], []

    async def run():
        go = asyncio.Event()

        async def receive():
            if body:
                return {"type": "http.request", "body": body.pop()}
            return await asyncio.Event().wait()

        async def send(message):
            sent.append(message.get("body", b"").decode())
            if len(sent) > 2:
                await go.wait()

        headers = [(b"content-type", b"application/json"), (b"host", b"localhost")]
        scope = {"type": "http", "method": "POST", "path": CHAT_PATH, "headers": headers, "query_string": b""}
        slow = asyncio.create_task(app(scope, receive, send))
        while len(sent) < 3:
            await asyncio.sleep(0)
        async with client_of(app) as client:
            other = await client.post(CHAT_PATH, json={**CHAT, "stream": False})
        while app.engine_thread.engine.busy:
            await asyncio.sleep(0)
        assert not slow.done()
        assert len(sent) == 3
        go.set()
        await slow
        return other.json()["choices"][0]["message"]["content"]

    text = asyncio.run(run())
    assert text == "x" + "y" * 500
    assert folded(events_of("".join(sent)))[0]["content"] == text
