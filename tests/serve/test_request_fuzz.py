"""Two thousand bodies at and beyond the limits, and damaged bodies of all APIs, beside a stream of another client.

``DFLASH_LONG=1`` sends more.
"""

import asyncio
import ctypes
import gc
import json
import platform
import random
import threading
import time
from collections import Counter, deque
from contextlib import contextmanager
from pathlib import Path

import api_bodies
import numpy as np
import pytest
from in_process import client_of
from long_form import LONG
from toy import Toy

from dflash.decode.engine import Engine
from dflash.errors import Unsupported
from dflash.generation.engine_thread import EngineThread
from dflash.serve.app import build_app
from dflash.serve.endpoints import Backend
from dflash.serve.limits import Limits

N = 1000 if LONG else 600
SEED = 20260707
CPU_WORK = 130
"""CPU time of the whole process for one request, in times of `fixed_work`; the typical request takes less than one."""

MEMORY = 50 << 20
"""Bytes that the process may grow by."""

REPEATS = 3
"""Times that a body may be sent until it stays below both bounds: other processes inflate CPU time now and then."""

WARM_UP = 100
"""Bodies before memory is compared: buffers of the tokenizer and of NumPy have their size then."""

GAP_WORK = 13
"""CPU time of the whole process, without the model's forwards, between two events of the other client's stream.

In times of `fixed_work`, as above; these bodies need at most 50 and 8. A body that exceeds one is sent again, see `REPEATS`.
"""

_FIXED = json.dumps(list(range(60_000)))


def names(rng):
    """A strategy's name: sound, at a limit, or beyond one."""
    parts = ["plain", "lookup", f"lookup:{rng.randint(0, 12000)}", "mtp:2", "dflash", "draft-model", "fast", "", "adaptive"]
    width = rng.choice([1, 2, 8, 9, 60, 2000])
    inner = ",".join(rng.choice(parts) for _ in range(width))
    depth = rng.choice([0, 1, 1, 2, 3, 250, 3000])
    return rng.choice(
        [*parts, "first(" * depth + inner + ")" * depth, "adaptive(" + "(" * depth, "x" * 10 ** rng.randint(1, 5)]
    )


def nested(rng, depth):
    """An object of so many levels, as JSON text."""
    opening, closing = rng.choice([("[", "]"), ('{"a":', "}"), ('{"properties":{"a":', "}}")])
    levels = depth // len(closing)
    return opening * levels + rng.choice(["1", '"x"', "null"]) + closing * levels


def piece(rng):
    """One field and its value, as JSON text."""
    n = 10 ** rng.randint(0, 4)
    field, value = rng.choice(
        [
            lambda: ("strategy", names(rng)),
            lambda: ("recover", rng.choice(["loop,", "empty,", "stall:x,", "min:3,", ","]) * n),
            lambda: ("recover", [rng.choice(["loop", "empty", "min:2", "stall", ""])] * rng.choice([1, 3, 8, 9, n])),
            lambda: ("stop", rng.choice(["a", "\n", "\u00e9"]) * rng.choice([1, 255, 256, 257, n])),
            lambda: ("stop", ["x" * rng.randint(0, 300)] * rng.choice([1, 15, 16, 17, n])),
            lambda: ("logit_bias", {str(i): rng.choice([1, -100, 101]) for i in range(rng.choice([1, 500, 1024, 1025, n]))}),
            lambda: ("n", rng.choice([1, 2, 64, 65, 0, 10**300])),
            lambda: ("seed", rng.choice([0, -(2**63), 2**64, 10**400])),
            lambda: ("min_tokens", rng.choice([0, 1, 10**9, 2**31])),
            lambda: ("thinking_token_budget", rng.choice([0, 1, 10**9, 2**31, -1, "2"])),
            lambda: ("max_tokens", rng.choice([1, 2, 0, -1, 2**31])),
            lambda: ("repetition_penalty", rng.choice([1e-45, 1e-30, 0.5, 100, 101])),
            lambda: ("temperature", rng.choice([0, 1e-9, 1, 100, 101, "hot"])),
            lambda: ("logprobs", rng.choice([0, 5, True, 21])),
            lambda: ("echo", True),
            lambda: ("repetition_detection", {"max_pattern_size": rng.choice([0, 8, 4096, 4097]), "min_count": 2}),
            lambda: (
                "chat_template_kwargs",
                rng.choice([{"documents": 5}, {"enable_thinking": False}, {"a": [[]] * n}, {"messages": []}]),
            ),
            lambda: ("tool_choice", rng.choice(["required", "none", "auto", {"function": {"name": "x"}}])),
            lambda: ("stream", rng.choice([True, False])),
            lambda: ("response_format", {"type": rng.choice(["text", "json_object"])}),
            lambda: ("json_schema", rng.choice([{"type": "array"}, {"enum": [1] * n}, {"a": [[]] * n}, {"type": n}])),
            lambda: ("guided_choice", ["a" * rng.choice([1, 300])] * rng.choice([1, 1024, 1025, n])),
            lambda: ("structured_outputs", {"regex": rng.choice(["a{1,9}", "(a|b)*" * min(n, 100), "(", "(a{9}){9}"])}),
            lambda: ("grammar", rng.choice(['start: "a"', "start: /" + "a?" * n + "/", 'root ::= "a"', "("])),
            lambda: ("parallel_tool_calls", rng.choice([True, False, "no"])),
        ]
    )()
    return f"{json.dumps(field)}:{json.dumps(value)}"


def tool(rng):
    schema = nested(rng, rng.choice([1, 10, 50, 300])) if rng.random() < 0.5 else json.dumps({"type": "object"})
    return '{"type":"function","function":{"name":"look","parameters":' + schema + "}}"


def body(rng):
    """The path of a request and its body."""
    chat = rng.random() < 0.5
    size = 10 ** rng.randint(0, 5)
    text = rng.choice(["a", "9", "word ", "\u4e2d", "<|im_end|>", " "]) * size
    if chat:
        message = {"role": rng.choice(["user", "system", "developer", "tool", "robot"]), "content": text}
        messages = [message] * rng.choice([1, 1, 2, 20])
        if rng.random() < 0.2:
            arguments = rng.choice(
                ['{"n": 1e3}', '{"a": ' + "9" * size, "[" * size, '{"a":' * 500 + "1e3" + "}" * 500, None]
            )
            call = {"function": {"name": "look", "arguments": arguments}}
            messages.append({"role": "assistant", "tool_calls": [call] * rng.choice([1, 30])})
            messages.append({"role": "tool", "content": [{"type": "tool_reference", "tool_name": "look"}] * 30})
        fields = [f'"messages":{json.dumps(messages)}']
        if rng.random() < 0.3:
            fields.append('"tools":[' + ",".join(tool(rng) for _ in range(rng.choice([1, 2, 30]))) + "]")
    else:
        ids = [rng.randrange(100)] * min(size, 50_000)
        prompt = rng.choice([text, ids, [text] * rng.choice([1, 2, 64, 65]), [ids] * rng.choice([1, 3, 64])])
        fields = [f'"prompt":{json.dumps(prompt)}']
    fields.append('"max_tokens":2')  # thousands of tokens would be honest work of more than a second
    fields += [piece(rng) for _ in range(rng.randint(0, 3))]
    junk = [nested(rng, rng.choice([60, 70, 5000])), "[" + "[]," * size + "1]", "1" * size, '"' + '\\\\\\"[' * size + '"']
    if rng.random() < 0.15:
        fields.append(f'"unknown":{rng.choice(junk)}')
    return f"/v1/{'chat/' if chat else ''}completions", ("{" + ",".join(fields) + "}").encode()


def fixed_work():
    """CPU seconds of one reading and writing of 60,000 numbers as JSON: the measure of this machine's speed."""
    began = time.thread_time()
    json.dumps([number + 1 for number in json.loads(_FIXED)])
    return time.thread_time() - began


def memory():
    """Bytes of memory that the process holds, without what its allocator keeps for later."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


class ForwardClock:
    """CPU time of the process without the forwards of a model written in Python, which stand for work of a device."""

    def __init__(self, model):
        self._forward, self._in_forwards = model.forward, 0.0
        model.forward = self._timed

    def _timed(self, *args, **kwargs):
        began = time.thread_time()
        try:
            return self._forward(*args, **kwargs)
        finally:
            self._in_forwards += time.thread_time() - began

    def __call__(self):
        return time.process_time() - self._in_forwards


@contextmanager
def toy_app(lm, law, context):
    """Yield a server with a model of no cost that has neither an MTP head nor a draft, and the clock of its process."""

    def no_draft(*_, **__):
        raise Unsupported("there is no draft for this model")

    model = Toy(lm.tokenizer.n_vocab, pages=300, slots=32, context=context, law=law)
    model.forwards = deque(maxlen=1)
    model.config.n_mtp, model.device, model.finish = 0, "cpu", lambda: None
    clock = ForwardClock(model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dflash.decode.drafters.dflash.load_draft", no_draft)
        engine_thread = EngineThread(Engine(model))
        gc.collect()
        gc.freeze()  # as the server does when it has loaded
        yield build_app(Backend(engine_thread, lm.tokenizer, lm.template, ["toy"], limits=Limits(context))), clock
        gc.unfreeze()
        engine_thread.close()
    assert model.leaked == (0, 0, 0)


@pytest.fixture
def toy_server(lm):
    """A server whose output is always token 0."""
    row = np.zeros(lm.tokenizer.n_vocab, np.float32)
    with toy_app(lm, lambda _: row, 4096) as served:
        yield served


class Neighbour:
    """Another client: streams one text after another, and notes the longest time between two of its events."""

    def __init__(self, app, clock):
        self._app, self._clock, self.n_events, self._last, self._gap = app, clock, 0, None, 0.0
        self.streaming, self.leave = asyncio.Event(), False

    def start(self):
        """Note gaps from now on."""
        self._last, self._gap = self._clock(), 0.0

    def longest_gap(self):
        """Seconds of the longest gap since `start`, up to now if no event came since the last one."""
        return self._gap if self._last is None else max(self._gap, self._clock() - self._last)

    async def stay(self):
        """Stream texts until asked to leave."""
        while not self.leave:
            await self._stream()

    async def _stream(self):
        body = [{"type": "http.request", "body": b'{"prompt": "a", "max_tokens": 1000, "stream": true}'}]
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b""}
        scope["headers"] = [(b"content-type", b"application/json"), (b"host", b"localhost")]
        self._last = None

        async def receive():
            if body:
                return body.pop()
            return await asyncio.Event().wait()

        await self._app(scope, receive, self._send)

    async def _send(self, message):
        now = self._clock()
        if message["type"] == "http.response.start":
            assert message["status"] == 200
            return  # it may have to wait for its turn now
        if self._last is not None:
            self._gap = max(self._gap, now - self._last)
            self.n_events += 1
            assert b"error" not in message["body"]
        self._last = now if message.get("more_body") else None
        if self._last is None:
            self.streaming.clear()
        else:
            self.streaming.set()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="asks glibc and /proc for the memory of the process")
def test_any_body_is_answered_or_refused(toy_server):
    """Each with 200 or 400 (413 for its size), quickly, and without making the other client wait."""
    app, clock = toy_server
    rng = random.Random(SEED)
    headers = {"Content-Type": "application/json"}
    statuses, slow = Counter(), []
    neighbour = Neighbour(app, clock)

    async def send(client, path, content):
        neighbour.start()
        began = time.process_time()
        answer = await client.post(path, content=content, headers=headers)
        return answer, time.process_time() - began, neighbour.longest_gap()

    async def run(client):
        unit = fixed_work()
        for i in range(WARM_UP + N):
            if i == WARM_UP:
                before = memory()
            path, content = body(rng)
            for _ in range(REPEATS):
                await neighbour.streaming.wait()
                answer, took, gap = await send(client, path, content)
                assert answer.status_code in (200, 400, 413), (content[:300], answer.text[:300])
                if answer.status_code != 200:
                    assert len(answer.json()["error"]["message"]) < 1000
                if took < CPU_WORK * unit and gap < GAP_WORK * unit:
                    break
                unit = fixed_work()  # the machine may be slower now
            else:
                slow.append((took / unit, gap / unit, path, content[:300]))
            statuses[answer.status_code] += 1
        return memory() - before

    async def both():
        async with client_of(app) as client, asyncio.TaskGroup() as group:
            group.create_task(neighbour.stay())
            grown = await run(client)
            neighbour.leave = True
        return grown

    grown = asyncio.run(both())
    assert not slow
    assert grown < MEMORY
    assert neighbour.n_events > N // 4
    assert min(statuses[200], statuses[400]) > N // 20, statuses


N_DAMAGED = 10_000 if LONG else 300

KINDS = {"invalid_request_error", "authentication_error", "server_error"}
ENDS = {
    "/v1/responses": ("response.completed", "response.incomplete", "response.failed"),
    "/v1/messages": ("message_stop", "error"),
}


def changing_law(tokenizer):
    """Logits that depend on the last tokens; every 37th token ends the output."""
    rows = np.zeros((9, tokenizer.n_vocab), np.float32)
    rows[8, list(tokenizer.eos_ids)] = 9
    for number, text in enumerate(["a", " b", "<think>", "</think>", "<tool_call>", "{", "\n", "\u4e2d"]):
        rows[number, tokenizer.encode(text)[0]] = 9
    return lambda text: rows[8 if len(text) % 37 == 0 else (sum(text[-3:]) + len(text)) % 8]


def check_answer(answer, path):
    """Check status and shape of a response, whatever the request was."""
    status, route = answer.status_code, path.partition("?")[0]
    assert status < 300 or 400 <= status < 500 or status in (503, 529)
    if status >= 400 and answer.request.method != "HEAD":
        error = answer.json()["error"]
        assert 0 < len(error["message"]) < 1000
        if route.startswith("/v1/messages"):
            assert answer.json()["type"] == "error"
            assert error["type"].endswith("_error") or error["type"] == "request_too_large"
        else:
            assert error["type"] in KINDS
            assert error.keys() == {"message", "type", "param", "code"}
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        *_, last = answer.text.strip().split("\n\n")
        assert last.startswith(tuple(f"event: {name}\n" for name in ENDS.get(route, ()))) or last == "data: [DONE]"
        assert '"server_error"' not in answer.text
        assert '"api_error"' not in answer.text


async def steady(client, stop, texts):
    """Stream the same completion again and again, beside the damaged requests."""
    body = {"prompt": "import os", "max_tokens": 30, "stream": True}
    while not stop.is_set():
        answer = await client.post("/v1/completions", json=body)
        events = [json.loads(part[6:]) for part in answer.text.split("\n\n") if part.startswith("data: {")]
        texts["".join(event["choices"][0]["text"] for event in events if event["choices"])] += 1


def test_damaged_bodies_of_all_apis(lm):
    """Each route answers or refuses in the shape of its API; valid bodies are answered, another stream stays the same."""
    rng, statuses, texts, wrong = random.Random(SEED), Counter(), Counter(), []

    async def one(client):
        method, path, content, valid = api_bodies.request(rng)
        answer = await client.request(method, path, content=content, headers={"Content-Type": "application/json"})
        try:
            check_answer(answer, path)
            assert not valid or answer.status_code == 200
        except (AssertionError, KeyError, ValueError):
            wrong.append((method, path, answer.status_code, answer.text[-300:], content[:300]))
        statuses[answer.status_code] += 1

    async def run(app):
        stop = asyncio.Event()
        async with client_of(app) as client, asyncio.TaskGroup() as group:
            group.create_task(steady(client, stop, texts))
            for _ in range(N_DAMAGED // 4):
                await asyncio.gather(*(one(client) for _ in range(4)))
            stop.set()
        return app.state.api.preparing

    with toy_app(lm, changing_law(lm.tokenizer), 1024) as (app, _):
        n_threads = threading.active_count()
        assert asyncio.run(run(app)) == 0
        assert threading.active_count() <= n_threads + 4  # those that read requests and compile grammars stay
    assert not wrong, "\n".join(map(str, wrong[:5]))
    assert len(texts) == 1
    assert min(statuses[200], statuses[400]) > N_DAMAGED // 5, statuses
