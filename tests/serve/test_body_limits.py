"""The limits of bodies hold on every route that takes one, with errors in the form of its API."""

import asyncio

import pytest
from in_process import sent
from starlette.routing import Route

from dflash.serve import limits
from dflash.serve.limits import Limits

IS_JSON = {"Content-Type": "application/json"}


@pytest.fixture
def post(app_of):
    """Posts to an app over a scripted engine; returns the response. ``post.paths`` are all paths that take a body."""
    app = app_of(limits=Limits(1024), api_key="secret")

    def send(path, content, headers=IS_JSON):
        return sent(app, "POST", path, content=content, headers={"x-api-key": "secret", **headers})

    send.paths = [route.path for route in app.routes if isinstance(route, Route) and "POST" in route.methods]
    return send


async def slow():
    yield b"{"
    await asyncio.Event().wait()


async def long():
    for _ in range(2):
        yield b" " * Limits(1024).body_bytes


@pytest.mark.parametrize(
    ("content", "headers", "status", "words"),
    [
        (b"[" * (limits.MAX_DEPTH + 1), IS_JSON, 400, f"nested {limits.MAX_DEPTH + 1} levels deep"),
        (b'{"a": [' + b"[]," * 70_000 + b"[]]}", IS_JSON, 400, "arrays and objects"),
        (b'{"a": [' + b"1," * 70_000 + b"1]}", IS_JSON, 400, "values"),
        (b'{"a": ' + b"1" * (limits.MAX_DIGITS + 1) + b"}", IS_JSON, 400, "a number of more than"),
        (b'{"a": NaN}', IS_JSON, 400, "is not valid JSON"),
        (b'{"a": "\xff"}', IS_JSON, 400, "is not valid JSON"),
        (b'{"a": "\\ud800"}', IS_JSON, 400, "unpaired surrogate"),
        (b"", IS_JSON, 400, "is not valid JSON"),
        (b"{", IS_JSON, 400, "is not valid JSON"),
        (b"5", IS_JSON, 400, "must be a JSON object"),
        (b"[]", IS_JSON, 400, "must be a JSON object"),
        (b'{"a": "' + b"a" * Limits(1024).body_bytes + b'"}', IS_JSON, 413, "longer than"),
        (long, IS_JSON, 413, "longer than"),
        (b"{}", {"Content-Type": "text/plain"}, 415, "must be application/json"),
        (b"{}", {**IS_JSON, "x-api-key": "wrong"}, 401, "the API key is missing or wrong"),
        (slow, IS_JSON, 408, "did not arrive within"),
    ],
    ids=[
        "deep",
        "containers",
        "values",
        "digits",
        "nan",
        "utf-8",
        "surrogate",
        "empty",
        "open",
        "5",
        "[]",
        "long",
        "chunks",
        "type",
        "key",
        "slow",
    ],
)
def test_a_body_beyond_a_limit(post, monkeypatch, content, headers, status, words):
    monkeypatch.setattr(limits, "BODY_SECONDS", 0.05 if content is slow else limits.BODY_SECONDS)
    assert len(post.paths) >= 8
    for path in post.paths:
        answer = post(path, content() if callable(content) else content, headers)
        assert (answer.status_code, words in answer.json()["error"]["message"]) == (status, True), (path, answer.text)
        assert answer.json()["error"].get("code") in (None, "body_too_large") or status != 413
        assert (answer.json().get("type") == "error") == path.startswith("/v1/messages")
