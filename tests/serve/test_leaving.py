"""Clients that go away: what they held is free within a step or a prompt chunk. The fixtures check that it is."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

HEAD = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"

LONG = [7] * 30000
"""A prompt that takes seconds to read."""


def wait_until(claim, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def leave(server, body, moment):
    """Send a request, wait for `moment`, close the connection without a word; returns how long it took to be free."""
    content = httpx.Request("POST", f"{server.url}/v1/completions", json=body)
    head = f"{HEAD}Content-Length: {len(content.content)}\r\n\r\n"
    url = httpx.URL(server.url)
    with socket.create_connection((url.host, url.port)) as connection:
        connection.sendall(head.encode() + content.content)
        moment(connection)
        assert server.worker.engine.busy
    left = time.monotonic()
    wait_until(lambda: not server.worker.engine.busy)
    return time.monotonic() - left


def in_prefill(server):
    return lambda _: wait_until(lambda: server.worker.engine.active and server.pools.free_pages < server.pools.pages - 4)


def after_text(connection):
    seen = b""
    while seen.count(b"data: ") < 5:
        seen += connection.recv(1000)


@pytest.mark.parametrize("stream", [False, True])
def test_in_the_middle_of_the_prompt(server, stream):
    took = leave(server, {"prompt": LONG, "max_tokens": 5, "stream": stream}, in_prefill(server))
    assert took < 2.5


def test_in_the_middle_of_a_stream(server):
    assert leave(server, {"prompt": "import os", "max_tokens": 20000, "stream": True}, after_text) < 1


def test_in_the_middle_of_an_answer(server):
    body = {"prompt": "import os", "max_tokens": 20000, "n": 3}
    assert leave(server, body, lambda _: wait_until(lambda: server.worker.engine.active == 3)) < 1


def test_while_waiting_for_a_place(server, client):
    body = {"prompt": "import os", "max_tokens": 20000, "n": 20}
    assert leave(server, body, lambda _: wait_until(lambda: server.worker.engine.waiting)) < 1
    assert client.completions.create(model="demo", prompt="a", max_tokens=1).choices


def test_before_the_end_of_the_body(server, client):
    url = httpx.URL(server.url)
    with socket.create_connection((url.host, url.port)) as connection:
        connection.sendall(f"{HEAD}Content-Length: 1000\r\n\r\n{{".encode())
    assert client.completions.create(model="demo", prompt="a", max_tokens=1).choices


def test_others_go_on(server, client):
    settings = {"model": "demo", "prompt": "def fibonacci(n):", "max_tokens": 200}
    alone = client.completions.create(**settings).choices[0].text
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(client.completions.create, **settings)
        for _ in range(3):
            body = {"prompt": "import os", "max_tokens": 20000, "stream": True}
            url = httpx.URL(server.url)
            with httpx.stream("POST", f"{url}/v1/completions", json=body) as answer:
                next(answer.iter_lines())
        assert other.result().choices[0].text == alone
