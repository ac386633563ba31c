"""The event loop is never blocked, and a request waits for one job: CPU time of the longest callback, jobs of a request."""

import asyncio
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import httpx
import pytest
from in_process import client_of, sent

from dflash.kernels.ragged import PENDING
from dflash.serve.limits import Limits

LIMIT = 0.02
"""CPU seconds of one callback."""

REPEATS = 3
"""Times that a request may be sent until no callback exceeds the limit: other processes inflate CPU time now and then."""

TEXT = "A line of text with some words, of which there are many.\n" * 6000
"""340 kB: below the limit of a body, and tens of milliseconds of tokenizing."""

TOOLS = 300


def tools(wrap):
    """Many functions, as agents with many servers have them."""
    schema = {"type": "object", "properties": {f"field_{i}": {"type": "string", "description": "x" * 60} for i in range(8)}}
    return [wrap(f"tool_{number}", schema) for number in range(TOOLS)]


def chat(stream):
    functions = tools(lambda name, schema: {"type": "function", "function": {"name": name, "parameters": schema}})
    messages = [{"role": "user", "content": TEXT}]
    return "/v1/chat/completions", {"messages": messages, "tools": functions, "stream": stream}


def completion(stream):
    return "/v1/completions", {"prompt": TEXT, "stream": stream}


def responses(stream):
    functions = tools(lambda name, schema: {"type": "function", "name": name, "parameters": schema})
    return "/v1/responses", {"input": TEXT, "tools": functions, "stream": stream}


def messages(stream):
    functions = tools(lambda name, schema: {"name": name, "input_schema": schema})
    turns = [{"role": "user", "content": TEXT}]
    return "/v1/messages", {"messages": turns, "max_tokens": 5, "tools": functions, "stream": stream}


def counting(stream):
    _, body = messages(stream)
    return "/v1/messages/count_tokens", body


def tokenizing(_):
    return "/tokenize", {"content": TEXT, "with_pieces": True}


@contextmanager
def longest_callback(found):
    """Append the most CPU seconds that one callback of an event loop took in this thread."""
    run, most = asyncio.events.Handle._run, [0.0]

    def timed(handle):
        began = time.thread_time()
        try:
            run(handle)
        finally:
            most[0] = max(most[0], time.thread_time() - began)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.events.Handle, "_run", timed)
        yield
    found.append(most[0])


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="replaces a method of CPython's event loop")
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("form", [chat, completion, responses, messages, counting, tokenizing])
def test_no_callback_takes_long(app_of, form, stream):
    app = app_of(*["hello"] * 20, limits=Limits(1 << 18))
    path, body = form(stream)
    request = httpx.Request("POST", f"http://app{path}", json=body)
    headers = {"Content-Type": "application/json"}

    async def send():
        async with client_of(app) as client:
            answer = await client.post(path, content=request.content, headers=headers)
            assert answer.status_code == 200, answer.text[:300]

    found = []
    for _ in range(REPEATS):
        with longest_callback(found):
            asyncio.run(send())
        if found[-1] < LIMIT:
            return
    raise AssertionError(f"the event loop was blocked for {min(found) * 1e3:.0f} ms of CPU time")


@pytest.mark.parametrize("more", [{}, {"strategy": "lookup"}, {"recover": ["loop"]}], ids=["usual", "strategy", "recovery"])
def test_a_request_reaches_the_engine_in_one_job(app_of, monkeypatch, more):
    """Each job waits for the interpreter, which a busy engine holds: requests that arrive together would come one by one."""
    jobs, reached, submit = [], [], ThreadPoolExecutor.submit
    app = app_of("Hello")
    engine = app.engine_thread.engine
    engine.model = SimpleNamespace(config=SimpleNamespace(pending=PENDING))
    add_all, engine.add_all = engine.add_all, lambda sessions: reached.append(len(jobs)) or add_all(sessions)
    monkeypatch.setattr(ThreadPoolExecutor, "submit", lambda self, *work: jobs.append(work) or submit(self, *work))
    answer = sent(app, "POST", "/v1/completions", json={"prompt": "Hi", **more})
    assert (answer.status_code, reached) == (200, [1])
