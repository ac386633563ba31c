"""Many clients over all APIs at once: no error, outputs as alone, and nothing left. Counters stand for clocks."""

import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
from hang_guard import GUARD, wait_until

TEXT = "The quick brown fox jumps over the lazy dog, then it reads import os and def add(a, b): return a + b. "
STRATEGIES = ["plain", "lookup", "mtp:2", "dflash"]
N_CLIENTS = 12
N_EACH = 4

MAX_POOLS = min(32, (os.cpu_count() or 1) + 4) + 3
"""Threads of asyncio's pool, of the pool that reads requests, and of the engine's; far fewer than there are requests."""


def form(number, rng):
    """Path and body of a sampled request."""
    text = TEXT[number % 40 :] * rng.choice([1, 1, 4])
    settings = {"temperature": 0.8, "seed": number, "strategy": STRATEGIES[number % 4]}
    messages, n = [{"role": "user", "content": text}], rng.choice([1, 6, 16])
    return [
        ("/v1/chat/completions", {"messages": messages, "max_tokens": n, **settings}),
        ("/v1/completions", {"prompt": text, "max_tokens": n, **settings}),
        ("/v1/responses", {"input": text, "max_output_tokens": n, **settings}),
        ("/v1/messages", {"messages": messages, "max_tokens": n, **settings}),
    ][number // 4 % 4]


def output_of(body):
    """The part of a response that depends on its tokens alone."""
    if "choices" in body:
        return [{**choice, "usage": body["usage"]["completion_tokens"]} for choice in body["choices"]]
    if "output" in body:
        return [[part.get("content"), part.get("summary")] for part in body["output"]], body["usage"]["output_tokens"]
    return body["content"], body["usage"]["output_tokens"]


def test_many_clients_at_once_are_answered(server):
    rng = random.Random(5)
    forms = [form(number, rng) for number in range(16)]

    def ask(http, path, body):
        answer = http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return output_of(answer.json())

    with httpx.Client(base_url=server.url, timeout=GUARD) as http:
        alone = [ask(http, *each) for each in forms]
    n_threads = threading.active_count()
    most = []

    def observe(events, _):
        most.append(len(events))

    server.engine_thread.observers.append(observe)

    def client(number):
        own = random.Random(number)
        with httpx.Client(base_url=server.url, timeout=GUARD) as http:
            for _ in range(N_EACH):
                which = own.randrange(len(forms))
                path, body = forms[which]
                if own.random() < 0.4:
                    with http.stream("POST", path, json={**body, "stream": True}) as answer:
                        assert answer.status_code == 200
                        for count, line in enumerate(answer.iter_lines()):
                            assert '"server_error"' not in line
                            assert '"api_error"' not in line
                            if count == own.choice([3, 1000]):
                                break  # the client leaves
                else:
                    assert ask(http, path, body) == alone[which]

    try:
        with ThreadPoolExecutor(N_CLIENTS) as pool:
            list(pool.map(client, range(N_CLIENTS)))
    finally:
        server.engine_thread.observers.remove(observe)
    assert max(most) >= server.engine_thread.engine.max_active
    wait_until(lambda: not server.engine_thread.sessions)
    assert threading.active_count() <= n_threads + MAX_POOLS
    assert server.app.state.api.preparing == 0


def test_a_batch_shares_its_forwards(server, http, monkeypatch):
    """Eight requests at once need at most 1 / 2.5 of the forwards of eight requests in turn."""
    model, counts = server.loaded.model, [0]
    forward = model.forward

    def counted(*args, **settings):
        counts[0] += 1
        return forward(*args, **settings)

    monkeypatch.setattr(model, "forward", counted)
    body = {"prompt": "import os", "max_tokens": 24, "logit_bias": {str(server.loaded.tokenizer.eos): -100}}
    one = http.post("/v1/completions", json=body).json()["usage"]["completion_tokens"]
    n_alone, counts[0] = counts[0], 0
    many = http.post("/v1/completions", json={**body, "n": 8}).json()["usage"]["completion_tokens"]
    assert many == 8 * one
    assert counts[0] * 2.5 <= 8 * n_alone
