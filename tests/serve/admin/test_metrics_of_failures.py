"""Metrics move when requests fail, leave, wait for memory or are mended."""

import socket

import httpx
import pytest
from hang_guard import GUARD, wait_until
from prometheus_client.parser import text_string_to_metric_families

from dflash.errors import KernelError
from dflash.generation.load import start
from dflash.model.loading.settings import LoadSettings
from dflash.serve.app import build_app
from dflash.serve.endpoints import Backend
from dflash.serve.limits import Limits


def scrape(http):
    """Sample values by ``name`` or ``name{label,...}``, without the model's name."""
    found = {}
    for family in text_string_to_metric_families(http.get("/metrics").text):
        for sample in family.samples:
            labels = ",".join(value for name, value in sorted(sample.labels.items()) if name != "model_name")
            found[sample.name.removeprefix("dflash:") + (f"{{{labels}}}" if labels else "")] = sample.value
    return found


class Changes:
    """What moved since the last call."""

    def __init__(self, http):
        self._http, self._before = http, scrape(http)

    def __call__(self):
        before, self._before = self._before, scrape(self._http)
        return {name: moved for name, value in self._before.items() if (moved := value - before.get(name, 0))}


@pytest.fixture
def changes(http):
    return Changes(http)


def test_a_compute_failure(http, server, changes, monkeypatch):
    def fail(*_, **__):
        monkeypatch.undo()
        raise KernelError("the device said no")

    monkeypatch.setattr(server.loaded.model, "forward", fail)
    assert http.post("/v1/completions", json={"prompt": "a", "max_tokens": 2}).status_code == 500
    wait_until(lambda: not server.engine_thread.sessions)
    moved = changes()
    assert moved["request_failed_total"] == moved["http_requests_total{POST,/v1/completions,500}"] == 1
    assert moved["e2e_request_latency_seconds_count"] == 1
    assert not {"request_success_total{stop}", "time_to_first_token_seconds_count", "generation_tokens_total"} & set(moved)


def test_clients_that_leave_a_stream_and_the_queue(http, server, changes):
    url = httpx.URL(server.url)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {url.host}\r\nContent-Type: application/json\r\n"
    body = b'{"prompt": "import os", "max_tokens": 20000, "n": 9}'
    with socket.create_connection((url.host, url.port)) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        wait_until(lambda: (server.engine_thread.engine.active, server.engine_thread.engine.waiting) == (8, 1))
        running = scrape(http)
        assert (running["num_requests_running"], running["num_requests_waiting"]) == (8, 1)
    wait_until(lambda: not server.engine_thread.engine.busy and not server.engine_thread.sessions)
    wait_until(lambda: scrape(http).get("http_requests_total{POST,/v1/completions,499}"))
    moved = changes()
    assert moved["request_cancelled_total"] == 9
    assert not {"num_requests_waiting", "num_requests_running", "kv_cache_usage_perc"} & set(moved), "they are back to zero"


def test_a_guard_that_ends_a_text_in_circles(http, changes):
    circles = {"max_pattern_size": 8, "min_count": 4}
    body = {"prompt": "0, 1, 0, 1, 0, 1, 0, 1, 0, 1,", "max_tokens": 60, "repetition_detection": circles}
    answer = http.post("/v1/completions", json=body).json()
    moved = changes()
    assert answer["interventions"]
    (name,) = [name for name in moved if name.startswith("recoveries_total")]
    assert moved[name] == len(answer["interventions"])


def test_sequences_that_outgrow_the_pages(serving):
    """Three KV pages of 1 MiB and 256 tokens, for two sequences that need two each."""
    loaded, engine_thread = start("demo", LoadSettings(threads=1, sequences=2, kv_bytes=3 << 20))
    engine_thread.engine.starter.headroom = 0
    backend = Backend(engine_thread, loaded.tokenizer, loaded.template, ["demo"], limits=Limits(loaded.model.config.context))
    with serving(build_app(backend)) as url, httpx.Client(base_url=url, timeout=GUARD) as http:
        changes = Changes(http)
        assert http.post("/v1/completions", json={"prompt": [5] * 245, "max_tokens": 30, "n": 2}).status_code == 200
        wait_until(lambda: not engine_thread.sessions)
        moved, text = changes(), http.get("/metrics").text
    assert loaded.model.pools.pages == 3
    assert moved["num_preemptions_total"] >= 1
    assert moved["request_success_total{length}"] == 2
    assert not {"num_requests_waiting", "num_requests_running", "kv_cache_usage_perc"} & set(moved)
    assert "# HELP dflash:num_requests_waiting Sequences that wait to start, or to go on after a preemption." in text
