"""Limits on the heads of requests, at the sockets of the real server."""

import json
import socket
import threading
from contextlib import ExitStack
from types import SimpleNamespace

import httpx
import pytest
from hang_guard import GUARD, wait_until
from loops import BOTH_LOOPS

from dflash.serve import limits
from dflash.serve.server import Server
from dflash.serve.startup.sockets import listening, url_of

pytestmark = BOTH_LOOPS

PATHS = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/tokenize",
]


@pytest.fixture
def served(app_of):
    """A server with a scripted engine in a thread; ``ask(bytes)`` returns status and body of a raw request."""
    app, started = app_of("hello"), threading.Event()
    with listening("127.0.0.1", 0) as sockets:
        server = Server(app, app.engine_thread, grace=1, ready=started.set)
        thread = threading.Thread(target=server.run, args=(sockets,))
        thread.start()
        assert started.wait(GUARD)
        url = httpx.URL(url_of(sockets))

        def connect():
            return socket.create_connection((url.host, url.port), timeout=GUARD)

        yield SimpleNamespace(url=str(url), connect=connect, server=server)
        server.should_exit = True
        thread.join()


def answer_of(connection):
    """Read a response to the end of the connection."""
    with connection.makefile("rb") as file:
        head, _, body = file.read().partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def check_error(path, status, answer, words):
    assert (answer[0], words in answer[1]["error"]["message"]) == (status, True), answer
    assert (answer[1].get("type") == "error") == path.startswith("/v1/messages")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("line", ["X-Long: " + "a" * 70_000, "X-One: 1\r\n" * 9000], ids=["long", "many"])
def test_a_head_that_is_too_long(served, path, line):
    with served.connect() as connection:
        connection.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{line}"[: limits.HEADER_BYTES + 1].encode())
        check_error(path, 431, answer_of(connection), f"longer than {limits.HEADER_BYTES} bytes")


@pytest.mark.parametrize("path", PATHS)
def test_too_many_headers(served, path):
    with httpx.Client(base_url=served.url, timeout=GUARD) as http:
        headers = {f"X-{i}": "a" for i in range(limits.MAX_HEADERS)}
        answer = http.post(path, json={"prompt": "a"}, headers=headers)
        check_error(path, 431, (answer.status_code, answer.json()), f"at most {limits.MAX_HEADERS} are allowed")
        few = dict(list(headers.items())[:100])
        assert http.post("/v1/completions", json={"prompt": "a"}, headers=few).status_code == 200


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
    ],
)
def test_what_is_no_request(served, sent, status):
    with served.connect() as connection:
        connection.sendall(sent)
        answer = answer_of(connection)
    assert answer[0] == status
    assert answer[1]["error"]["message"]


def test_chunks_that_are_not_valid_end_the_connection_only(served):
    head = b"POST /v1/messages HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    with served.connect() as connection:
        connection.sendall(head + b"5\r\n{....\r\nnonsense\r\n")
        status, body = answer_of(connection)
    assert (status, body["type"]) == (400, "error")
    assert httpx.get(f"{served.url}/health", timeout=GUARD).status_code == 200


def test_the_loop_is_the_one_that_is_installed(served, loop):
    with served.connect():
        assert type(connection_of(served).loop).__module__.partition(".")[0] == loop


def connection_of(served):
    """Return the server's side of the only connection."""
    wait_until(lambda: len(served.server.server_state.connections) == 1)
    (connection,) = served.server.server_state.connections
    return connection


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_a_head_that_never_ends(served, path):
    with served.connect() as connection:
        connection.sendall(f"POST {path} HTTP/1.1\r\nHost: a\r\n".encode())
        protocol = connection_of(served)
        wait_until(lambda: protocol.conn.trailing_data[0])
        assert protocol._head_timer is not None
        protocol.loop.call_soon_threadsafe(protocol._head_is_late)
        check_error(path, 408, answer_of(connection), "did not arrive within 60 seconds")


def test_a_connection_without_a_request_is_closed(served, monkeypatch):
    monkeypatch.setattr(limits, "HEADER_SECONDS", 0.05)
    with served.connect() as silent:
        assert silent.recv(1) == b""


def test_the_time_of_a_head_ends_with_the_head(served):
    with served.connect() as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n{")
        protocol = connection_of(served)
        wait_until(lambda: protocol.cycle is not None)
        wait_until(lambda: protocol._head_timer is None)


def test_unused_connections_make_room_for_others(served, monkeypatch):
    """The newest of a flood of half requests are closed last, and requests under way never are."""
    monkeypatch.setattr(limits, "MAX_CONNECTIONS", 4)
    connections = served.server.server_state.connections
    with ExitStack() as stack:
        busy = stack.enter_context(served.connect())
        busy.sendall(request(b'{"prompt": "a"}'))
        assert b" 200 " in busy.recv(100)
        flood = []
        for i in range(8):
            flood.append(stack.enter_context(served.connect()))
            flood[-1].sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n" if i % 2 else request(b"{", 9))
            wait_until(lambda: len(connections) == min(len(flood) + 1, 4))
        for path in ("/health", "/v1/models"):
            assert httpx.get(f"{served.url}{path}", timeout=GUARD).status_code == 200
        assert ended(flood[0])


def test_requests_hold_all_connections_but_health(served, monkeypatch):
    monkeypatch.setattr(limits, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr("dflash.serve.startup.protocol.BoundedProtocol.is_unused", False)
    with served.connect(), served.connect():
        wait_until(lambda: len(served.server.server_state.connections) == 2)
        assert httpx.get(f"{served.url}/health", timeout=GUARD).status_code == 200
        refused = httpx.post(f"{served.url}/v1/messages", json={}, timeout=GUARD)
        assert (refused.status_code, refused.json()["type"], refused.headers["retry-after"]) == (529, "error", "1")


def test_a_request_that_meets_the_shutdown_is_answered(served, monkeypatch):
    monkeypatch.setattr(limits, "LAST_REQUEST_SECONDS", GUARD)
    with served.connect() as connection:
        connection.sendall(request(b'{"prompt": "a"}'))
        protocol = connection_of(served)
        wait_until(lambda: protocol.cycle is not None and protocol.cycle.response_complete)
        received = connection.recv(1 << 16)
        served.server.should_exit = True
        wait_until(lambda: protocol.is_shutting_down)
        connection.sendall(request(b'{"prompt": "a"}'))
        status, _ = answer_of(connection)
    assert (b" 200 " in received, status) == (True, 200)


def request(body, length=None):
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    return head + b"Content-Length: %d\r\n\r\n" % (len(body) if length is None else length) + body


def ended(connection):
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True
