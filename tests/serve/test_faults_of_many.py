"""Faults while clients of every API wait on sockets, some of them in the queue: each gets an error or its whole response."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import httpx
import pytest
from api_failures import APIS, check_failure
from hang_guard import GUARD, wait_until
from toy import Toy

from dflash.decode.engine import Engine
from dflash.errors import DeviceLost, KernelError, OutOfMemory, PoolExhausted
from dflash.generation.completion import Completion
from dflash.generation.engine_thread import EngineThread
from dflash.serve.app import build_app
from dflash.serve.endpoints import Backend

REQUESTS = [(path, stream) for path in APIS for stream in (False, True)]
FAILURES = '"error":{', '"type":"error"', "response.failed"
N_RUNNING = 3


@pytest.fixture
def held(lm, serving):
    """Eight clients, of which the engine runs three in a forward that is held until `go` is set; then it raises a fault."""
    toy = Toy(lm.tokenizer.n_vocab, slots=N_RUNNING)
    all_wait, reached, go = (threading.Event() for _ in range(3))

    def before_forward(_):
        if not all_wait.is_set():  # the first forward, with as many requests as have arrived
            assert all_wait.wait(GUARD)
            return
        reached.set()
        assert go.wait(GUARD)
        if faults:
            raise faults.pop()

    toy.before_forward, faults = before_forward, []
    engine_thread = EngineThread(Engine(toy))
    engine = engine_thread.engine
    with (
        serving(build_app(Backend(engine_thread, lm.tokenizer, lm.template, ["toy"]))) as url,
        httpx.Client(base_url=url, timeout=GUARD) as http,
        ThreadPoolExecutor(len(REQUESTS)) as pool,
    ):

        def ask(path, stream):
            return http.post(path, json={**APIS[path][0], "stream": stream})

        answers = [pool.submit(ask, *request) for request in REQUESTS]
        wait_until(lambda: engine.active + engine.waiting == len(REQUESTS))
        all_wait.set()
        assert reached.wait(GUARD)
        assert engine.active == N_RUNNING
        yield SimpleNamespace(
            faults=faults,
            engine=engine,
            http=http,
            ask=ask,
            go=go,
            results=lambda: [each.result(GUARD) for each in answers],
            sessions=engine_thread.sessions,
        )
        go.set()
        wait_until(lambda: engine_thread.ended or not engine_thread.sessions)
        assert toy.leaked == (0, 0, 0)
    engine_thread.close()


def n_failed(answers):
    """Check the shape of every failure and the end of every stream; return the number of failures."""
    n = 0
    for (path, stream), answer in zip(REQUESTS, answers, strict=True):
        failed = any(mark in answer.text for mark in FAILURES) if stream else answer.status_code != 200
        if failed:
            check_failure(answer, path)
        elif stream:
            last = {"/v1/responses": '"response.incomplete"', "/v1/messages": '"message_stop"'}.get(path, "data: [DONE]")
            assert last in answer.text.strip().split("\n\n")[-1]
        n += failed
    return n


def check_service(held):
    assert held.http.get("/health").json()["status"] == "ok"
    assert [held.ask(*request).status_code for request in REQUESTS] == [200] * len(REQUESTS)


def check_end(held):
    wait_until(lambda: held.http.get("/health").status_code == 503)
    health = held.http.get("/health").json()
    assert health["status"] == "failed"
    assert "the engine has failed" in health["error"]
    for path, stream in REQUESTS:
        answer = held.ask(path, stream)
        assert answer.status_code == (500 if path == "/v1/messages" else 503)
        error = check_failure(answer, path)
        if path != "/v1/messages":
            assert error["code"] == "engine_failed"
            assert answer.headers["retry-after"]


@pytest.mark.parametrize(
    "error",
    [KernelError("the device said no"), PoolExhausted("no KV pages are free"), OutOfMemory("no memory"), MemoryError()],
    ids=lambda error: type(error).__name__,
)
def test_a_forward_that_fails_once(held, error, caplog):
    """Those in it get an error; the others, who waited, are served."""
    held.faults.append(error)
    held.go.set()
    assert n_failed(held.results()) == N_RUNNING
    check_service(held)


@pytest.mark.parametrize("error", [KernelError, DeviceLost], ids=lambda kind: kind.__name__)
def test_forwards_that_always_fail(held, error, caplog):
    held.faults.extend(error("the device said no") for _ in range(100))
    held.go.set()
    assert n_failed(held.results()) == len(REQUESTS)
    check_end(held)


@pytest.mark.parametrize("method", ["_admit", "_advance"])
def test_an_engine_thread_that_is_killed(held, method, monkeypatch, caplog):
    def killed():
        raise SystemExit("killed")

    monkeypatch.setattr(held.engine, method, killed)
    held.go.set()
    assert n_failed(held.results()) == len(REQUESTS)
    check_end(held)


@pytest.mark.parametrize("place", ["running", "waiting"])
def test_a_parser_that_fails(held, place, monkeypatch, caplog):
    """One request fails, in the first step or after it has waited."""
    running = [session for session in held.sessions if session.state is not None]
    waiting = [session for session in held.sessions if session.state is None]
    assert len(running) == N_RUNNING
    (chosen, *_), real = {"running": running, "waiting": waiting}[place], Completion.delta

    def delta(completion, step):
        if completion.session is chosen:
            raise ZeroDivisionError("a parser failed")
        return real(completion, step)

    monkeypatch.setattr(Completion, "delta", delta)
    held.go.set()
    assert n_failed(held.results()) == 1
    check_service(held)
