"""Apps over a scripted engine that notes its prompts."""

import asyncio

import httpx
import pytest
from hang_guard import GUARD
from three_apis import Noting, body_of

from dflash.generation.engine_thread import EngineThread
from dflash.serve.app import build_app
from dflash.serve.endpoints import Backend
from dflash.serve.limits import Limits


@pytest.fixture
def ask(lm):
    """Sends a request to an app over a scripted engine; ``ask.engine`` is the last one."""
    workers = []

    def send(path, body, *script, context=32768, headers=None, method="POST", **settings):
        send.engine = Noting(lm.tokenizer, script, **settings)
        workers.append(EngineThread(send.engine))
        app = build_app(Backend(workers[-1], lm.tokenizer, lm.template, ["demo"], limits=Limits(context)))

        async def run():
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app", timeout=GUARD) as client:
                return await client.request(method, path, json=body, headers=headers)

        return asyncio.run(run())

    yield send
    for worker in workers:
        worker.close()


@pytest.fixture
def prompt(ask):
    """Returns the prompt of a request, which must be accepted."""

    def read(path, messages, **fields):
        answer = ask(path, body_of(path, messages, **fields))
        assert answer.status_code == 200, answer.text
        return ask.engine.prompts[0]

    return read
