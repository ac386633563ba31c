"""Requests that pass through a relay to replicas, some of which end, fail or refuse: what the client sees."""

import asyncio
import json
from contextlib import aclosing

import pytest
from in_process import sent
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route

from dflash.serve.http_errors import Problem
from dflash.serve.routing.bridge import responses
from dflash.serve.routing.call import Piece, ReplicaLost, owner_of, tag_of
from dflash.serve.routing.relay import MAX_BODY, MAX_TRIES, relayed

BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "stream": True},
    "/v1/completions": {"prompt": "x", "stream": True},
    "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9, "stream": True},
    "/v1/responses": {"input": "x", "stream": True},
}


class Replicas:
    """Replicas of an application; `broken` are the numbers of calls that end, after so many pieces with messages."""

    def __init__(self, app, broken=None):
        self.app, self.broken, self.calls, self.ended = app, broken or {}, [], []

    async def ask(self, call):
        number = len(self.calls)
        self.calls.append(call)
        left, name = self.broken.get(number), f"replica {number}"
        try:
            if isinstance(left, Exception):
                raise left
            yield Piece(name)
            async with aclosing(responses(self.app, call)) as found:
                async for messages in found:
                    for message in messages:
                        if left == 0:
                            raise ReplicaLost
                        left = None if left is None else left - 1
                        yield Piece(name, (message,), message.get("status") in (503, 529))
            if left is not None:
                raise ReplicaLost
        finally:
            self.ended.append(number)


def relay(replicas, accept_seconds=60):
    async def app(scope, receive, send):
        await (await relayed(Request(scope, receive), replicas.ask, accept_seconds))(scope, receive, send)

    return app


def served(*, statuses=(200,)):
    """An application whose answers are the given statuses in turn; it echoes the request, or streams three events."""
    turns = iter(statuses)

    async def answer(request):
        status = next(turns, statuses[-1])
        body = await request.body()
        if status != 200:
            return JSONResponse({"error": {"code": status}}, status, {"Retry-After": "7"})
        if json.loads(body).get("stream"):
            events = [f'data: {{"sequence_number":{n},"response":{{"id":"resp_1","n":{n}}}}}\n\n' for n in range(3)]
            return StreamingResponse(iter(events), media_type="text/event-stream", headers={"X-Kind": "events"})
        return JSONResponse({"got": body.decode(), "query": str(request.query_params)}, headers={"X-Kind": "whole"})

    async def name(request):
        return PlainTextResponse(request.path_params["name"])

    routes = [Route(path, answer, methods=["POST"]) for path in BODIES]
    return Starlette(routes=[*routes, Route("/v1/responses/{name}", name), Route("/{name:path}", name)])


def request(app, path, body=None, **given):
    return sent(app, "GET" if body is None else "POST", path, json=body, **given)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_a_response_passes_unchanged(path, stream):
    body = {**BODIES[path], "stream": stream, "text": "é" * 1000}
    direct, passed = request(served(), path + "?a=1", body), request(relay(Replicas(served())), path + "?a=1", body)
    assert (passed.status_code, passed.content, passed.headers) == (direct.status_code, direct.content, direct.headers)


def test_other_paths_and_errors_of_the_application_pass():
    assert request(relay(Replicas(served())), "/metrics").text == "metrics"
    refused = request(relay(Replicas(served(statuses=[413]))), "/v1/messages", BODIES["/v1/messages"])
    assert (refused.status_code, refused.headers["retry-after"], refused.json()) == (413, "7", {"error": {"code": 413}})


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    "left", [0, 1, ReplicaLost()], ids=["before the start", "before the first byte", "before it accepts"]
)
def test_before_the_first_byte_another_replica_answers(path, left):
    replicas = Replicas(served(), {0: left})
    passed = request(relay(replicas), path, BODIES[path])
    assert passed.content == request(served(), path, BODIES[path]).content
    assert len(replicas.calls) == 2 == len(replicas.ended)


@pytest.mark.parametrize("path", BODIES)
def test_a_broken_stream_ends_with_the_error_of_its_api(path):
    replicas = Replicas(served(), {0: 3})
    passed = request(relay(replicas), path, BODIES[path])
    whole = request(served(), path, BODIES[path]).text.split("\n\n")
    assert passed.status_code == 200
    events = passed.text.split("\n\n")
    assert events[:2] == whole[:2]
    assert len(replicas.calls) == 1
    data = [json.loads(line[6:]) for line in passed.text.splitlines() if line.startswith("data: {")][2:]
    if path == "/v1/messages":
        assert events[2].startswith("event: error\n")
        assert data[0]["error"]["type"] == "overloaded_error"
    elif path == "/v1/responses":
        assert events[2].startswith("event: response.failed\n")
        assert data[0]["sequence_number"] == 2
        assert (data[0]["response"]["id"], data[0]["response"]["status"]) == ("resp_1", "failed")
        assert "has ended" in data[0]["response"]["error"]["message"]
    else:
        assert data[0]["error"]["code"] == "replica_lost"
        assert events[-2] == "data: [DONE]"
    assert events[-1] == ""


@pytest.mark.parametrize(
    ("path", "status", "kind"), [("/v1/chat/completions", 503, "server_error"), ("/v1/messages", 529, "overloaded_error")]
)
def test_without_any_replica_the_error_is_of_the_api(path, status, kind):
    replicas = Replicas(served(), dict.fromkeys(range(9), ReplicaLost()))
    passed = request(relay(replicas), path, BODIES[path])
    assert (passed.status_code, passed.json()["error"]["type"]) == (status, kind)
    assert passed.headers["retry-after"] == "1"
    assert len(replicas.calls) == MAX_TRIES
    crowded = Replicas(served(), {0: Problem(503, "no replica", code="overloaded")})
    assert request(relay(crowded), path, BODIES[path]).status_code == status


def test_a_refusal_is_tried_elsewhere_and_the_last_one_passes():
    path = "/v1/chat/completions"
    replicas = Replicas(served(statuses=[503, 503, 200]))
    assert request(relay(replicas), path, BODIES[path]).status_code == 200
    assert [call.excluded for call in replicas.calls] == [(), ("replica 0",), ("replica 0", "replica 1")]
    passed = request(relay(Replicas(served(statuses=[503]))), path, BODIES[path])
    assert (passed.status_code, passed.headers["retry-after"]) == (503, "7")


def test_a_request_that_no_replica_accepts_ends():
    async def ask(call):
        await asyncio.Event().wait()
        yield

    async def app(scope, receive, send):
        await (await relayed(Request(scope, receive), ask, 0.01))(scope, receive, send)

    passed = request(app, "/v1/messages", BODIES["/v1/messages"])
    assert (passed.status_code, passed.json()["error"]["type"]) == (529, "overloaded_error")


def test_a_body_without_bounds_is_refused():
    passed = request(relay(Replicas(served())), "/v1/messages", {}, headers={"content-length": str(MAX_BODY + 1)})
    assert (passed.status_code, passed.json()["error"]["type"]) == (413, "request_too_large")


def test_a_client_that_leaves_ends_the_request_at_its_replica():
    async def run():
        left, begun = asyncio.Event(), asyncio.Event()

        async def endless(scope, receive, send):
            await receive()
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
            await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
            assert (await receive())["type"] == "http.disconnect"
            left.set()

        unread = [{"type": "http.request", "body": b"{}", "more_body": False}]

        async def receive():
            if unread:
                return unread.pop()
            await begun.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            if message.get("body"):
                begun.set()

        scope = {"type": "http", "method": "POST", "path": "/v1/messages", "headers": [], "query_string": b""}
        replicas = Replicas(endless)
        async with asyncio.timeout(60):
            await relay(replicas)(scope, receive, send)
            await left.wait()
        assert replicas.ended == [0]

    asyncio.run(run())


def test_a_stored_response_is_sought_at_its_replica():
    replicas = Replicas(served())
    name = f"resp_{tag_of('replica a')}{'0' * 24}"
    request(relay(replicas), "/v1/responses", {"input": "x", "previous_response_id": name})
    request(relay(replicas), f"/v1/responses/{name}")
    request(relay(replicas), "/v1/responses", {"input": "x", "previous_response_id": 7})
    request(relay(replicas), "/v1/chat/completions", BODIES["/v1/chat/completions"])
    assert [call.owner for call in replicas.calls] == [tag_of("replica a"), tag_of("replica a"), None, None]
    assert owner_of("chatcmpl-1") is None
