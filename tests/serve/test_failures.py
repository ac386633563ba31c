"""Engine failures under a real server: every request ends, and ``/health`` shows the state."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import httpx
import pytest
from hang_guard import GUARD
from toy import Toy

from dflash.decode.engine import Engine
from dflash.generation.engine_thread import EngineThread
from dflash.serve.app import build_app
from dflash.serve.endpoints import Backend
from dflash.serve.limits import Limits


@pytest.fixture
def toy(lm, serving):
    """A toy model with the demo's vocabulary behind a real server; `toy.hold()` stops it inside its next forward."""
    toy = Toy(lm.tokenizer.n_vocab, slots=2)
    reached, go = threading.Event(), threading.Event()
    go.set()

    def before_forward(_):
        reached.set()
        assert go.wait(GUARD)

    toy.before_forward, toy.reached, toy.go = before_forward, reached, go
    engine_thread = EngineThread(Engine(toy, max_waiting=4))
    app = build_app(Backend(engine_thread, lm.tokenizer, lm.template, ["toy"]))
    with serving(app) as url, httpx.Client(base_url=url, timeout=GUARD) as http:
        yield SimpleNamespace(model=toy, engine_thread=engine_thread, http=http, url=url)
        go.set()
    engine_thread.close()


def hold(toy):
    """Stop the engine inside its next forward."""
    toy.model.reached.clear()
    toy.model.go.clear()


def ask(toy, **settings):
    with httpx.Client(base_url=toy.url, timeout=GUARD) as http:
        return http.post("/v1/completions", json={"prompt": [1, 2, 3], "max_tokens": 3, **settings})


@pytest.fixture
def five(toy):
    """Five clients, of which the engine runs two in a forward that is held; they get their answers when it goes on."""
    hold(toy)
    with ThreadPoolExecutor(5) as pool:
        streams = [False, True, False, True, False]
        answers = [pool.submit(ask, toy, stream=stream) for stream in streams]
        assert toy.model.reached.wait(GUARD)
        while toy.engine_thread.engine.waiting + toy.engine_thread.engine.active < 5:
            assert not any(answer.done() for answer in answers)
        yield lambda: [answer.result(GUARD) for answer in answers]
        toy.model.go.set()


def test_a_queue_that_is_full_says_so_at_once(toy, five):
    refused = ask(toy, n=2)
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "overloaded"
    assert refused.headers["retry-after"]
    toy.model.go.set()
    for answer in five():
        assert answer.status_code == 200
        assert '"error"' not in answer.text
    assert ask(toy, n=2).status_code == 200


def test_choices_take_turns_with_the_requests_of_others(toy, monkeypatch):
    requests, add_all = [], toy.engine_thread.engine.add_all

    def noted(sessions):
        requests.append(sessions)
        add_all(sessions)

    monkeypatch.setattr(toy.engine_thread.engine, "add_all", noted)
    hold(toy)
    with ThreadPoolExecutor(2) as pool:
        many = pool.submit(ask, toy, n=5)
        assert toy.model.reached.wait(GUARD)
        one = pool.submit(ask, toy)
        while toy.engine_thread.engine.waiting < 4:
            assert not one.done()
        toy.model.go.set()
        assert one.result(GUARD).status_code == many.result(GUARD).status_code == 200
    (*_, fourth, _), (other,) = requests
    assert other.started_at < fourth.started_at


def test_a_forward_that_hangs_shows_in_health(toy, monkeypatch):
    health = toy.http.get("/health")
    assert (health.status_code, health.json()["step_age"]) == (200, None)
    hold(toy)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, toy)
        assert toy.model.reached.wait(GUARD)
        health = toy.http.get("/health")
        assert (health.status_code, health.json()["status"]) == (200, "ok")
        assert health.json()["step_age"] >= 0
        monkeypatch.setattr("dflash.serve.health.MAX_STEP_AGE", -1.0)
        health = toy.http.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "stalled")
        toy.model.go.set()
        assert answer.result(GUARD).status_code == 200


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_takes_too_long(lm, serving, path, stream):
    """It ends with an error in its API's shape, and its memory is free as soon as the engine goes on."""
    toy, going = Toy(lm.tokenizer.n_vocab, slots=2), threading.Event()
    toy.before_forward = lambda _: going.wait(GUARD)
    engine_thread = EngineThread(Engine(toy))
    backend = Backend(engine_thread, lm.tokenizer, lm.template, ["toy"], limits=Limits(1 << 18, request_seconds=0.05))
    bodies = {"/v1/completions": {"prompt": [1, 2]}, "/v1/responses": {"input": "Hi"}}
    body = bodies.get(path, {"messages": [{"role": "user", "content": "Hi"}]})
    with serving(build_app(backend)) as url, httpx.Client(base_url=url, timeout=GUARD) as http:
        answer = http.post(path, json={**body, "max_tokens": 500, "stream": stream})
        assert answer.status_code == (200 if stream else 504)
        assert "the request took more than 0.05 seconds" in answer.text
        going.set()
        while engine_thread.engine.busy:
            engine_thread.call(int)
        assert toy.pools.free_slots == 2
        assert http.get("/health").status_code == 200
    engine_thread.close()
