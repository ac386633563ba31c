"""Requests of every kind leave as many objects, threads and open files as there were before."""

import gc
import re
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest
from hang_guard import GUARD, wait_until

from dflash.generation.load import start
from dflash.model.loading.settings import LoadSettings
from dflash.serve.app import build_app
from dflash.serve.endpoints import Backend
from dflash.serve.limits import Limits

TURN = [{"role": "user", "content": "Name a city. " * 8}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
CHAT, FEW = "/v1/chat/completions", {"max_tokens": 4, "temperature": 0.8, "seed": 1}
REQUESTS = [
    (CHAT, {"messages": TURN, **FEW}),
    (CHAT, {"messages": TURN, "tools": [TOOL], "tool_choice": "required", **FEW}),
    (CHAT, {"messages": TURN, "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}, **FEW}),
    (CHAT, {"messages": TURN, "recover": "loop", "logprobs": True, "top_logprobs": 2, "stop": ["zz"], **FEW}),
    ("/v1/completions", {"prompt": ["import os", "a"], "n": 2, "strategy": "lookup", **FEW}),
    ("/v1/completions", {"prompt": "import os", "regex": "[a-z]{3}", "strategy": "mtp:2", **FEW}),
    ("/v1/responses", {"input": "Name a city.", "max_output_tokens": 4, "store": False, "strategy": "dflash"}),
    ("/v1/messages", {"messages": TURN, "max_tokens": 4}),
    ("/v1/messages", {"messages": TURN, "max_tokens": 4, "thinking": {"type": "adaptive"}}),
]
OTHERS = [
    ("/v1/messages/count_tokens", {"messages": TURN}),
    ("/tokenize", {"content": "a b c"}),
    (CHAT, {"messages": 3}),
    ("/v1/completions", {"prompt": "a", "regex": "("}),
    ("/v1/nothing", {}),
]
PATHS = ["/metrics", "/slots", "/props", "/v1/models", "/health", "/openapi.json", "/nothing", "/v1/responses/none"]

HELD = "dflash.decode.step.Step", "dflash.decode.engine.Event", "dflash.generation.completion.Delta"


def census():
    """Objects of dflash by class, threads and open files; without events, since an engine holds those of its last step.

    A pool of threads counts as one: it starts threads when all are busy, up to its size.
    """
    gc.collect()
    ours = Counter()
    for kind, n in Counter(map(type, gc.get_objects())).items():
        if (name := f"{kind.__module__}.{kind.__qualname__}").startswith("dflash.") and name not in HELD:
            ours[name] += n
    threads = {re.sub(r"_\d+$", "", thread.name) for thread in threading.enumerate()}
    return {**ours, "threads": len(threads), "files": sum(1 for _ in Path("/proc/self/fd").iterdir())}


def send_all(url):
    with httpx.Client(base_url=url, timeout=GUARD) as http:
        for path, body in REQUESTS:
            assert http.post(path, json=body).status_code == 200
            with http.stream("POST", path, json={**body, "stream": True}) as answer:
                assert answer.status_code == 200
                answer.read()
            with http.stream("POST", path, json={**body, "stream": True, "max_tokens": 500}) as answer:
                next(answer.iter_lines())  # the client leaves
        for path, body in OTHERS:
            http.post(path, json=body)
        for path in PATHS:
            http.get(path)


@pytest.mark.skipif(sys.platform != "linux", reason="counts the files of /proc")
@pytest.mark.parametrize("prefix_cache", [False, 64 << 20], ids=["no-cache", "cache"])
def test_nothing_grows_over_many_requests(serving, prefix_cache):
    loaded, engine_thread = start("demo", LoadSettings(threads=1, context=1024, sequences=4, prefix_cache=prefix_cache))
    backend = Backend(engine_thread, loaded.tokenizer, loaded.template, ["demo"], limits=Limits(loaded.model.config.context))
    with serving(build_app(backend)) as url:
        for _ in range(2):
            send_all(url)
        wait_until(lambda: not engine_thread.sessions)
        before = settled(lambda found: True)
        send_all(url)
        wait_until(lambda: not engine_thread.sessions)
        after = settled(lambda found: found == before)
    assert {name: (before.get(name, 0), n) for name, n in after.items() if n > before.get(name, 0)} == {}


def settled(wanted):
    """A census that is the same twice in a row, with a bound on how long `wanted` is waited for."""
    last, deadline = None, time.monotonic() + 120
    while (found := census()) != last or (not wanted(found) and time.monotonic() < deadline):
        last = found
        time.sleep(0.1)
    return found
