"""Apps over a scripted engine that notes its prompts."""

from functools import partial

import pytest
from in_process import sent
from three_apis import Noting, body_of

from dflash.serve.limits import Limits


@pytest.fixture
def ask(app_of):
    """Sends a request to an app over a scripted engine; ``ask.engine`` is the last one."""

    def send(path, body, *script, context=32768, headers=None, method="POST", **settings):
        app = app_of(*script, engine=partial(Noting, **settings), limits=Limits(context))
        send.engine = app.engine_thread.engine
        return sent(app, method, path, json=body, headers=headers)

    return send


@pytest.fixture
def prompt(ask):
    """Returns the prompt of a request, which must be accepted."""

    def read(path, messages, **fields):
        answer = ask(path, body_of(path, messages, **fields))
        assert answer.status_code == 200, answer.text
        return ask.engine.prompts[0]

    return read
