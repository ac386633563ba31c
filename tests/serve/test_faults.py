"""Faults inside the server: clients of every API get an error in its shape, and the next request is answered."""

import asyncio
from types import SimpleNamespace

import pytest
from api_failures import APIS, check_failure
from hang_guard import wait_until
from in_process import client_of
from toy import Toy

from dflash.decode.engine import Engine
from dflash.errors import KernelError
from dflash.generation.completion import Completion
from dflash.generation.engine_thread import EngineThread
from dflash.model.text.tokenizer import Tokenizer
from dflash.serve.app import build_app
from dflash.serve.endpoints import Backend

every_api = pytest.mark.parametrize("path", APIS)
streamed_or_not = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def toy_server(lm, **settings):
    model = Toy(lm.tokenizer.n_vocab, law=lambda text: [0.0] * 7 + [1.0] + [0.0] * (lm.tokenizer.n_vocab - 8), **settings)
    engine_thread = EngineThread(Engine(model))
    app = build_app(Backend(engine_thread, lm.tokenizer, lm.template, ["toy"]))
    return SimpleNamespace(model=model, engine_thread=engine_thread, app=app)


@pytest.fixture
def served(lm):
    """A toy model behind an application."""
    served = toy_server(lm)
    yield served
    served.engine_thread.close()
    assert served.model.leaked == (0, 0, 0)


def ask(served, path, *, stream=False, **settings):
    async def send():
        async with client_of(served.app, raise_app_exceptions=False) as client:
            if path == "/health":
                return await client.get(path)
            return await client.post(path, json={**APIS[path][0], "stream": stream, **settings})

    return asyncio.run(send())


def check_service(served):
    """Check that requests of every API are answered now, and that nothing of the failed ones is left."""
    assert ask(served, "/health").json()["status"] == "ok"
    for path in APIS:
        assert ask(served, path).status_code == 200
    wait_until(lambda: not served.engine_thread.engine.busy and not served.engine_thread.sessions)
    assert served.app.state.api.preparing == 0


@every_api
@streamed_or_not
def test_a_forward_that_fails_once(served, path, stream):
    def fails(_):
        served.model.before_forward = lambda _: None
        raise KernelError("the device said no")

    served.model.before_forward = fails
    check_failure(ask(served, path, stream=stream), path)
    check_service(served)


@every_api
@streamed_or_not
def test_a_parser_that_fails_once(served, path, stream, monkeypatch, caplog):
    """The request ends as a failure of the server, not as if the server were shutting down."""
    real, calls = Completion.delta, []

    def fails(completion, step):
        calls.append(step)
        if sum(bool(step.tokens) for step in calls) == 2:
            calls.append(step)
            raise ZeroDivisionError("a parser failed")
        return real(completion, step)

    monkeypatch.setattr(Completion, "delta", fails)
    error = check_failure(ask(served, path, stream=stream), path)
    assert "shutting down" not in error["message"]
    assert "ZeroDivisionError" in caplog.text
    monkeypatch.undo()
    check_service(served)


@every_api
@pytest.mark.parametrize("method", ["__init__", "opening", "delta", "closing", "whole"])
def test_a_format_that_fails(served, path, method, monkeypatch, caplog):
    monkeypatch.setattr(APIS[path][1], method, lambda *_, **__: 1 // 0)
    check_failure(ask(served, path, stream=method != "whole"), path)
    monkeypatch.undo()
    check_service(served)


@every_api
@streamed_or_not
def test_a_tokenizer_that_fails(served, path, stream, monkeypatch, caplog):
    monkeypatch.setattr(Tokenizer, "encode", lambda *_, **__: 1 // 0)
    error = check_failure(ask(served, path, stream=stream), path)
    assert "division" not in error["message"]
    monkeypatch.undo()
    check_service(served)


def test_choices_that_outgrow_the_pages(lm):
    """Some are preempted and resumed; their outputs do not show it."""
    served = toy_server(lm, pages=4)
    try:
        settings = {"max_tokens": 600, "prompt": "a"}
        alone = ask(served, "/v1/completions", **settings).json()["choices"][0]["text"]
        both = ask(served, "/v1/completions", **settings, n=2).json()
        assert [choice["text"] for choice in both["choices"]] == [alone] * 2
        assert served.engine_thread.engine.n_preempted
        check_service(served)
    finally:
        served.engine_thread.close()
    assert served.model.leaked == (0, 0, 0)
