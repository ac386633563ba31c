"""Clients that go away: what they held is free within a step or a prompt chunk. The fixtures check that it is.

The engine is held inside a forward while a client leaves and until the server has noticed. So the forwards after that can
be counted. The number of that forward is set before the request is sent: how fast the machine is does not matter.
"""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
from hang_guard import GUARD, wait_until
from loops import BOTH_LOOPS

HEAD = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"

LONG = [7] * 7000
"""A prompt of many chunks."""

IN_TEXT = 12
"""Forward of a stream before which more events were sent than `after_text` reads."""


class Forwards:
    """Counts the forwards of a model, and holds the engine inside forward number `hold_at` until `go` is set."""

    def __init__(self, model, monkeypatch):
        self.n, self.hold_at = 0, 0
        self.reached, self.go = threading.Event(), threading.Event()
        forward = model.forward

        def counted(spans, **settings):
            self.n += 1
            if self.n == self.hold_at:
                self.reached.set()
                assert self.go.wait(GUARD)
            return forward(spans, **settings)

        monkeypatch.setattr(model, "forward", counted)


@pytest.fixture
def forwards(server, monkeypatch):
    """The forwards of the server's model."""
    forwards = Forwards(server.loaded.model, monkeypatch)
    yield forwards
    forwards.go.set()


@contextmanager
def asking(server, body):
    """Send a request; the connection is closed without a word at the end."""
    content = httpx.Request("POST", f"{server.url}/v1/completions", json=body).content
    head = f"{HEAD}Content-Length: {len(content)}\r\n\r\n"
    url = httpx.URL(server.url)
    with socket.create_connection((url.host, url.port), GUARD) as connection:
        connection.sendall(head.encode() + content)
        yield connection


def leave(server, forwards, body, hold_at, moment=lambda connection: None):
    """Send a request and close the connection during forward `hold_at`, after `moment` was called in it.

    Returns how many forwards began after the server had noticed.
    """
    engine_thread, forwards.hold_at = server.engine_thread, hold_at
    with asking(server, body) as connection:
        assert forwards.reached.wait(GUARD)
        moment(connection)
        sessions = engine_thread.sessions
        assert sessions
        assert not any(session.cancelled for session in sessions)
        connection.close()
        wait_until(lambda: all(session.cancelled for session in sessions))
        forwards.go.set()
    wait_until(lambda: not engine_thread.sessions)
    assert {session.finish_reason for session in sessions} == {"cancelled"}
    return forwards.n - hold_at


def after_text(connection):
    seen = b""
    while seen.count(b"data: ") < 5:
        received = connection.recv(1000)
        assert received, seen
        seen += received


@pytest.mark.parametrize("stream", [False, True])
def test_in_the_middle_of_the_prompt(server, forwards, stream):
    body = {"prompt": LONG, "max_tokens": 5, "stream": stream}
    assert leave(server, forwards, body, 3) == 0
    assert forwards.n < len(LONG) // server.engine_thread.engine.chunk


@BOTH_LOOPS
def test_in_the_middle_of_a_stream(server, forwards):
    body = {"prompt": "import os", "max_tokens": 20000, "stream": True}
    assert leave(server, forwards, body, IN_TEXT, after_text) == 0


def test_in_the_middle_of_an_answer(server, forwards):
    def all_run(_):
        assert server.engine_thread.engine.active == 3

    assert leave(server, forwards, {"prompt": "import os", "max_tokens": 20000, "n": 3}, IN_TEXT, all_run) == 0


def test_while_waiting_for_a_place(server, client, forwards):
    def some_wait(_):
        assert server.engine_thread.engine.waiting == 20 - server.engine_thread.engine.max_active

    assert leave(server, forwards, {"prompt": "import os", "max_tokens": 20000, "n": 20}, IN_TEXT, some_wait) == 0
    assert client.completions.create(model="demo", prompt="a", max_tokens=1).choices


@BOTH_LOOPS
def test_before_the_end_of_the_body(server, client):
    url = httpx.URL(server.url)
    with socket.create_connection((url.host, url.port)) as connection:
        connection.sendall(f"{HEAD}Content-Length: 1000\r\n\r\n{{".encode())
    assert client.completions.create(model="demo", prompt="a", max_tokens=1).choices


@BOTH_LOOPS
def test_with_half_of_the_connection(server, client, forwards):
    """A client that will send nothing more counts as gone."""
    forwards.hold_at = IN_TEXT
    with asking(server, {"prompt": "import os", "max_tokens": 20000, "stream": True}) as connection:
        assert forwards.reached.wait(GUARD)
        after_text(connection)
        (session,) = server.engine_thread.sessions
        connection.shutdown(socket.SHUT_WR)
        wait_until(lambda: session.cancelled)
        forwards.go.set()
        wait_until(lambda: session.finished)
    assert session.finish_reason == "cancelled"
    assert client.completions.create(model="demo", prompt="a", max_tokens=1).choices


def test_others_go_on(server, client):
    settings = {"model": "demo", "prompt": "def fibonacci(n):", "max_tokens": 200}
    alone = client.completions.create(**settings).choices[0].text
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(client.completions.create, **settings)
        for _ in range(3):
            body = {"prompt": "import os", "max_tokens": 20000, "stream": True}
            url = httpx.URL(server.url)
            with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=GUARD) as answer:
                next(answer.iter_lines())
        assert other.result().choices[0].text == alone
