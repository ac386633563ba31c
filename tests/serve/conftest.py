"""A real server on a free port of 127.0.0.1, with the demo model."""

import asyncio
import inspect
import sys
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import httpx
import openai
import pytest
import uvicorn
from hang_guard import GUARD, wait_until
from serve_fakes import ScriptedEngine

from dflash.generation.engine_thread import EngineThread
from dflash.generation.load import start
from dflash.model.loading.settings import LoadSettings
from dflash.serve.admin.model_facts import ModelFacts
from dflash.serve.app import build_app
from dflash.serve.endpoints import Backend
from dflash.serve.limits import Limits
from dflash.serve.startup.protocol import CONNECTIONS


@pytest.fixture(scope="session", autouse=True)
def loop(request):
    """Kind of event loop of servers in this process: ``asyncio``, or ``uvloop``, beside which httptools is found, too.

    The extra `serve` installs neither. Files whose tests run on both have the mark `BOTH_LOOPS`.
    """
    with pytest.MonkeyPatch.context() as patch:
        if getattr(request, "param", "asyncio") == "asyncio":
            patch.setitem(sys.modules, "uvloop", None)
            patch.setitem(sys.modules, "httptools", None)
            if sys.version_info < (3, 14):  # uvicorn before 0.36 makes uvloop's policy that of the process
                asyncio.set_event_loop_policy(None)
        else:
            pytest.importorskip("uvloop", reason="uvloop is not made for this system")
        yield getattr(request, "param", "asyncio")


@contextmanager
def listening(app):
    """Serve an app in a thread; yields its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", **CONNECTIONS))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive())
        assert server.started
        host, port = server.servers[0].sockets[0].getsockname()
        yield f"http://{host}:{port}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="session")
def serving():
    """Serves an app in a thread: a context manager that yields its address."""
    return listening


@pytest.fixture
def app_of(lm):
    """Makes an app over a scripted engine, with settings of `Backend` and `build_app`; `app.engine_thread` is its thread."""
    engine_threads = []

    def make(*script, engine=ScriptedEngine, template=lm.template, **settings):
        access = {name: settings.pop(name) for name in inspect.signature(build_app).parameters if name in settings}
        engine_threads.append(EngineThread(engine(lm.tokenizer, script)))
        app = build_app(Backend(engine_threads[-1], lm.tokenizer, template, ["demo"], **settings), **access)
        app.engine_thread = engine_threads[-1]
        return app

    yield make
    for engine_thread in engine_threads:
        engine_thread.close()


@pytest.fixture(scope="session")
def server(loop):
    loaded, engine_thread = start("demo", LoadSettings(threads=1))
    limits = Limits(loaded.model.config.context)
    backend = Backend(
        engine_thread, loaded.tokenizer, loaded.template, ["demo", "demo-again"], limits=limits, facts=ModelFacts.of(loaded)
    )
    app = build_app(backend)
    with listening(app) as url:
        yield SimpleNamespace(url=url, app=app, loaded=loaded, engine_thread=engine_thread, pools=loaded.model.pools)


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def http(server):
    with httpx.Client(base_url=server.url, timeout=GUARD) as http:
        yield http


@pytest.fixture(autouse=True)
def nothing_is_left_behind(request):
    """Pages and slots are all free when a test ends that has used the server."""
    yield
    if "server" not in request.fixturenames:
        return
    server = request.getfixturevalue("server")
    pools, engine = server.pools, server.engine_thread.engine

    def left():
        return pools.free_pages, pools.free_slots, engine.busy

    wait_until(lambda: left() == (pools.pages, pools.slots, False))
