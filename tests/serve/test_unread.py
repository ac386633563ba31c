"""Clients that read nothing, over real sockets with small buffers: nobody waits for them, and they end in bounded time."""

import gc
import json
import socket
import threading
import weakref
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

import httpx
import pytest
from hang_guard import GUARD, wait_until
from loops import BOTH_LOOPS
from serve_fakes import ScriptedEngine

from dflash.generation.engine_thread import EngineThread
from dflash.serve import limits
from dflash.serve.app import build_app
from dflash.serve.endpoints import Backend
from dflash.serve.limits import Limits
from dflash.serve.server import Server, UnreadConnections

pytestmark = BOTH_LOOPS

TURN = [{"role": "user", "content": "hi"}]
APIS = {
    "/v1/chat/completions": {"messages": TURN},
    "/v1/completions": {"prompt": "a"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": TURN, "max_tokens": 10000},
}
TEXT = ["many words " * 30] * 600
"""Steps whose events fill all buffers of a connection several times."""

SMALL = 4096
"""Bytes of a socket's buffer; the kernel doubles them."""

MAX_UNREAD = 300_000
"""Bytes that wait in the server for one reader: uvicorn's 65536 and one event, which may hold the whole text."""

END = b"\r\n0\r\n\r\n"
"""End of a stream in HTTP."""

every_api = pytest.mark.parametrize("path", APIS)


class Counting(ScriptedEngine):
    """Counts the sequences that it was given."""

    n_added = 0

    def add_all(self, sessions):
        super().add_all(sessions)
        self.n_added += len(sessions)


@pytest.fixture
def start(lm):
    """Starts a server whose model writes `script`: ``start(script, seconds=..., grace=...)``."""
    started = []

    def begin(script, seconds=float("inf"), grace=0.0):
        engine_thread, ready = EngineThread(Counting(lm.tokenizer, script)), threading.Event()
        limits_of_it = Limits(1 << 18, request_seconds=seconds)
        app = build_app(Backend(engine_thread, lm.tokenizer, lm.template, ["demo"], limits=limits_of_it))
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        server = Server(app, engine_thread, grace=grace, ready=ready.set)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        started.append((server, thread))
        assert ready.wait(GUARD)
        host, port = listener.getsockname()
        return SimpleNamespace(
            url=f"http://{host}:{port}", address=(host, port), engine_thread=engine_thread, server=server, thread=thread
        )

    yield begin
    for server, thread in started:
        server.should_exit = True
        thread.join(GUARD)
        assert not thread.is_alive()


@contextmanager
def silent(served, path, **settings):
    """Send a request on a connection from which nothing is read."""
    content = json.dumps({**APIS[path], **settings}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        connection.settimeout(GUARD)
        connection.connect(served.address)
        connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        yield connection


def unread(served):
    """Bytes that wait in the server, by connection."""
    connections = tuple(served.server.server_state.connections)
    return [n for each in connections if (n := each.transport.get_write_buffer_size())]


def rest(connection):
    """What a client can still read."""
    parts = []
    try:
        while part := connection.recv(1 << 16):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def freed(served):
    """Wait until a request has begun and ended, and no connection is left."""
    wait_until(lambda: served.engine_thread.engine.n_added)
    wait_until(lambda: not served.engine_thread.engine.busy and not served.server.server_state.tasks)
    wait_until(lambda: not served.server.server_state.connections)


@every_api
def test_neighbours_and_the_engine_do_not_wait(start, path):
    """The engine has written everything for the silent client, and answered a neighbour, while it read nothing."""
    served = start(TEXT)
    with silent(served, path, stream=True) as connection:
        wait_until(lambda: unread(served))
        (session,) = served.engine_thread.sessions or [None]
        answer = httpx.post(served.url + path, json={**APIS[path], "stream": True}, timeout=GUARD)
        assert answer.status_code == 200
        wait_until(lambda: not served.engine_thread.engine.busy)
        assert session is None or session.finish_reason == "stop"
        wait_until(lambda: len(served.server.server_state.tasks) == 1)
        assert 0 < max(unread(served)) < MAX_UNREAD
        received = b""  # it begins to read: everything is there
        while not received.endswith(END):
            received += received_from(connection)
    assert len(received) > len(answer.content)
    freed(served)


def received_from(connection):
    part = connection.recv(1 << 16)
    assert part, "the server closed the connection"
    return part


@every_api
def test_an_unread_stream_is_cut(start, path, monkeypatch, caplog):
    served = start(TEXT)
    monkeypatch.setattr(limits, "SEND_SECONDS", 0.05)
    with silent(served, path, stream=True) as connection:
        freed(served)
        assert not rest(connection).endswith(END)
    assert "read nothing" in caplog.text


@every_api
def test_a_request_that_takes_too_long_and_is_not_read(start, path, monkeypatch):
    """The engine would go on for ever; the end comes by the time of the request, and frees its objects."""
    monkeypatch.setattr(limits, "LAST_SECONDS", 0.05)
    for seconds in (0.3, 3, 30):  # until all buffers are full, which takes longer on a busy machine
        served = start(TEXT * 1000, seconds=seconds)
        with silent(served, path, stream=True) as connection:
            wait_until(lambda each=served: each.engine_thread.sessions)
            left = weakref.WeakSet(served.engine_thread.sessions)
            freed(served)
            if not rest(connection).endswith(END):
                break
    else:
        pytest.fail("a stream that nobody reads has its end")

    def forgotten():
        gc.collect()
        return not left

    wait_until(forgotten)
    assert httpx.get(f"{served.url}/health", timeout=GUARD).status_code == 200


@every_api
def test_a_slow_reader_gets_the_error(start, path):
    """A client that has read nothing until the time is over, and then reads, gets all events and the error."""
    beyond = threading.Event()
    served = start([*TEXT[:50], lambda: beyond.wait(GUARD)] * 2, seconds=0.5)
    with silent(served, path, stream=True) as connection:
        wait_until(lambda: any(session.cancelled for session in served.engine_thread.sessions))
        beyond.set()
        received = b""
        while b"more than 0.5 seconds" not in received:
            received += received_from(connection)
    freed(served)


@every_api
def test_an_unread_whole_response(start, path, monkeypatch):
    """Its sequence is free at once; its connection after `SEND_SECONDS`."""
    served = start(TEXT)
    with silent(served, path) as connection:
        wait_until(lambda: unread(served) and not served.server.server_state.tasks)
        assert not served.engine_thread.engine.busy
        assert served.server.server_state.connections
        monkeypatch.setattr(limits, "SEND_SECONDS", 0.05)
        freed(served)
        assert len(rest(connection)) < sum(map(len, TEXT))


@dataclass(eq=False)
class Connection:
    """A connection of uvicorn after its response."""

    transport: object
    cycle: object = field(default_factory=lambda: SimpleNamespace(response_complete=True))


@pytest.mark.parametrize(("sizes", "n_looks"), [([9, 8, 8, 7, 7, 6, 0, 0], None), ([9, 8, 8, 8, 7], 3), ([0, 5, 5, 5], 3)])
def test_a_reader_with_pauses_is_left_alone(sizes, n_looks):
    """A look every 60 seconds: a connection is closed at the second one at which nothing was taken."""
    looks, unread, aborted = iter(sizes), UnreadConnections(), []
    transport = SimpleNamespace(get_write_buffer_size=lambda: next(looks), abort=lambda: aborted.append(True))
    connection = Connection(transport)
    for look in range(len(sizes)):
        unread.check([connection], 60.0 * look)
        assert aborted == [True] * (look == n_looks)
        if aborted:
            break
    assert bool(aborted) == (n_looks is not None)


def test_half_of_a_connection_with_unread_bytes(start):
    """The event loop would wait until everything is taken before it notices that the client will send nothing more."""
    served = start(TEXT)
    with silent(served, "/v1/completions", stream=True) as connection:
        wait_until(lambda: unread(served))
        connection.shutdown(socket.SHUT_WR)
        freed(served)


def test_a_shutdown_does_not_wait_for_them(start, monkeypatch):
    monkeypatch.setattr(limits, "LAST_SECONDS", 0.05)
    served = start(TEXT)
    with silent(served, "/v1/completions", stream=True), silent(served, "/v1/completions"):
        wait_until(lambda: len(unread(served)) == 2)
        served.server.should_exit = True
        wait_until(lambda: not served.thread.is_alive())
