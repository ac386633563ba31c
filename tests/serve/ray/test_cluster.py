"""The server on a local Ray: two replicas of the demo, killed, broken and left by clients."""

import json
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import httpx
import pytest
from hang_guard import GUARD, wait_until

TEXT = "1, 2, 3, 4, 5, 6, 7, 8,"
LONG = "Count on. " * 120
REQUESTS = {
    "/v1/completions": {"prompt": TEXT, "max_tokens": 12, "logprobs": 1},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 12},
    "/v1/messages": {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 12},
    "/v1/responses": {"input": TEXT, "max_output_tokens": 12},
}
VARYING = {"id", "created", "created_at", "completed_at", "request_id", "item_id", "system_fingerprint", "fingerprint"}
KEEP_OPEN = {"prompt": TEXT, "max_tokens": 900, "stream": True, "logit_bias": {}, "min_tokens": 900}


def without_ids(value):
    if isinstance(value, dict):
        return {key: without_ids(each) for key, each in value.items() if key not in VARYING}
    return [without_ids(each) for each in value] if isinstance(value, list) else value


def answer(http, path, body):
    """Return status, type and the JSON of an answer or of its events, without what differs from one request to the next."""
    found = http.post(path, json=body)
    lines = [line[6:] for line in found.text.splitlines() if line.startswith("data: {")] or [found.text]
    return found.status_code, found.headers["content-type"], [without_ids(json.loads(line)) for line in lines]


def active(cluster, name):
    found, body = cluster.ask("/health", name)
    assert found == name
    return json.loads(body)["active"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", REQUESTS)
def test_answers_equal_those_of_the_plain_server(ray_http, http, path, stream):
    body = {**REQUESTS[path], "temperature": 0.9, "seed": 11, "stream": stream}
    assert answer(ray_http, path, body) == answer(http, path, body)


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/chat/completions", {"messages": 3}), ("/v1/messages", {"messages": []}), ("/v1/responses/resp_none", None)],
)
def test_errors_equal_those_of_the_plain_server(ray_http, http, path, body):
    one, other = (client.request("GET" if body is None else "POST", path, json=body) for client in (ray_http, http))
    assert (one.status_code, without_ids(one.json())) == (other.status_code, without_ids(other.json()))


def test_a_conversation_stays_with_its_replica(ray_http):
    """Ids of responses begin with the tag of their replica."""
    homes = {}
    for turn in range(3):
        for name in "abcd":
            said = f"{name * 30} {LONG} {'and on ' * (40 * turn)}"
            found = ray_http.post("/v1/completions", json={"prompt": said, "max_tokens": 2}).json()
            homes.setdefault(name, set()).add(found["id"].removeprefix("cmpl-")[:8])
    assert all(len(tags) == 1 for tags in homes.values())
    assert len(set.union(*homes.values())) == 2


def test_a_stored_response_is_found_again(ray_http):
    first = [ray_http.post("/v1/responses", json={"input": f"{n}", "max_output_tokens": 2}).json()["id"] for n in range(6)]
    for name in first:
        assert ray_http.get(f"/v1/responses/{name}").json()["id"] == name
        body = {"input": "on", "previous_response_id": name, "max_output_tokens": 2}
        assert ray_http.post("/v1/responses", json=body).json()["previous_response_id"] == name


def test_a_client_that_leaves_frees_its_replica(cluster, ray_http):
    with ray_http.stream("POST", "/v1/completions", json=KEEP_OPEN) as found:
        lines = found.iter_lines()
        first = json.loads(next(line for line in lines if line.startswith("data: {"))[6:])
        (name,) = [name for name in cluster.ready() if cluster.tag_of(name) in first["id"]]
        assert active(cluster, name) == 1
    wait_until(lambda: active(cluster, name) == 0)


def test_a_killed_replica_leaves_no_request_without_an_end(cluster):
    """Streams that have begun end with an error event, or whole; the other replica answers the other requests."""
    n = 12
    begun = Barrier(n + 1)

    def send(number):
        stream, text = number % 2 == 0, f"{number}, {number + 1},"
        n_tokens = 800 if stream else 200
        body = {"prompt": text, "max_tokens": n_tokens, "min_tokens": n_tokens, "stream": stream}
        with httpx.Client(base_url=cluster.url, timeout=GUARD) as http:
            if not stream:
                begun.wait(GUARD)
                return http.post("/v1/completions", json=body)
            with http.stream("POST", "/v1/completions", json=body) as found:
                lines = found.iter_lines()
                events = [next(lines)]
                begun.wait(GUARD)
                return [line for line in [*events, *lines] if line]

    before = cluster.ready()
    with ThreadPoolExecutor(n) as threads:
        answers = [threads.submit(send, number) for number in range(n)]
        begun.wait(GUARD)
        cluster.kill(before[0])
        found = [each.result() for each in answers]
    broken = 0
    for number, each in enumerate(found):
        if number % 2:
            assert each.status_code == 200, each.text
            assert each.json()["usage"]["completion_tokens"] == 200
        else:
            assert each[-1] == "data: [DONE]"
            last = json.loads(each[-2][6:])
            broken += "error" in last
            assert last.get("error", {}).get("code") == "replica_lost" or last["choices"][0]["finish_reason"] == "length"
    assert broken
    assert before[0] not in cluster.ready()  # Ray has started another replica
    assert httpx.get(f"{cluster.url}/health", timeout=GUARD).json()["status"] == "ok"


def test_a_replica_whose_engine_has_failed_is_replaced(cluster, ray_http):
    broken = cluster.ready()[0]
    assert cluster.ask("/break", broken)[0] == broken
    for number in range(8):  # until Ray has noticed, the other replica answers
        found = ray_http.post("/v1/completions", json={"prompt": f"{number}", "max_tokens": 2})
        assert found.status_code == 200, found.text
    wait_until(lambda: broken not in cluster.names())
    assert len(cluster.ready()) == 2
