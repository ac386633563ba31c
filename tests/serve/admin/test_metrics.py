"""Metrics: counts of real requests, and the dashboard that shows them."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from hang_guard import GUARD, wait_until
from in_process import sent
from prometheus_client.parser import text_string_to_metric_families
from streams import first_text

import dflash.serve.admin
from dflash.decode.drafting.draft import Draft
from dflash.decode.recoveries.intervention import Intervention
from dflash.decode.session import Step
from dflash.generation.load import start
from dflash.model.loading.settings import LoadSettings
from dflash.serve.admin.engine_counters import BucketCounts, EngineCounters
from dflash.serve.admin.model_facts import ModelFacts
from dflash.serve.app import build_app
from dflash.serve.endpoints import Backend
from dflash.serve.limits import Limits

PAGE = Path(__file__).parents[3] / "docs/metrics.md"
DASHBOARD = Path(dflash.serve.admin.__file__).with_name("grafana.json")


def scrape(http, **headers):
    """Sample values by name and labels, without the model's name."""
    answer = http.get("/metrics", headers=headers)
    assert answer.status_code == 200
    return samples(answer.text)


def samples(text):
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name != "model_name"}
            found[sample.name, tuple(sorted(labels.items()))] = sample.value
    return found


def change(after, before, name, **labels):
    key = f"dflash:{name}", tuple(sorted(labels.items()))
    return after[key] - before.get(key, 0)


def test_counts_agree_with_the_usage_of_requests(http, server):
    before = scrape(http)
    body = {"prompt": ["import os", "1, 2, 3, 1, 2, 3, 1, 2,"], "max_tokens": 24, "strategy": "lookup"}
    usage = http.post("/v1/completions", json=body).json()["usage"]
    details = usage["completion_tokens_details"]
    accepted = details["accepted_prediction_tokens"]
    after = scrape(http)
    assert change(after, before, "prompt_tokens_total") == usage["prompt_tokens"]
    assert change(after, before, "generation_tokens_total") == usage["completion_tokens"]
    assert change(after, before, "spec_decode_num_accepted_tokens_total") == accepted > 0
    assert change(after, before, "spec_decode_num_draft_tokens_total") == accepted + details["rejected_prediction_tokens"]
    assert 0 < change(after, before, "spec_decode_num_drafts_total") <= usage["completion_tokens"]
    per_position = [
        value - before.get(key, 0) for key, value in after.items() if key[0].endswith("accepted_tokens_per_pos_total")
    ]
    assert sum(per_position) == accepted
    assert change(after, before, "request_success_total", finished_reason="length") == 2
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time"):
        assert change(after, before, f"{name}_seconds_count") == 2
    n_steps = change(after, before, "step_seconds_count")
    assert change(after, before, "step_sequences_count") == change(after, before, "step_rows_count") == n_steps
    assert 1 <= usage["rows_per_step"] <= change(after, before, "step_rows_sum")
    emitted = change(after, before, "inter_token_latency_seconds_count") + 2
    assert change(after, before, "step_sequences_sum") == emitted
    route = {"route": "/v1/completions", "method": "POST", "status": "200"}
    assert change(after, before, "http_requests_total", **route) == 1


def test_gauges_show_the_running_sequences(http, server):
    body = {"prompt": "import os", "max_tokens": 4000, "stream": True}
    before = scrape(http)
    with http.stream("POST", "/v1/completions", json=body) as stream:
        lines = stream.iter_lines()
        first_text(lines)
        running = scrape(http)
    wait_until(lambda: not server.engine_thread.sessions)
    after = scrape(http)
    usage = "dflash:kv_cache_usage_perc", ()
    assert running["dflash:num_requests_running", ()] == 1
    assert running["dflash:num_requests_waiting", ()] == 0
    assert 0 < running[usage] <= 1
    assert before[usage] == after[usage] == after["dflash:num_requests_running", ()] == 0
    assert change(after, before, "request_cancelled_total") == 1


def test_preemptions_are_counted(http, server, monkeypatch):
    monkeypatch.setattr(server.engine_thread.engine, "n_preempted", 7)
    assert scrape(http)["dflash:num_preemptions_total", ()] == 7


def test_errors_count_by_route_and_status(http):
    before = scrape(http)
    http.post("/v1/completions", json={"prompt": 5})
    http.get("/some/secret/path")
    http.request("BREW", "/v1/models")
    after = scrape(http)
    assert change(after, before, "http_requests_total", route="/v1/completions", method="POST", status="400") == 1
    assert change(after, before, "http_requests_total", route="unmatched", method="GET", status="404") == 1
    assert change(after, before, "http_requests_total", route="/v1/models", method="other", status="405") == 1
    assert not any("secret" in str(key) for key in after)


def test_openmetrics_is_spoken_on_demand(http):
    answer = http.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


@pytest.fixture
def prefix_server(serving, tmp_path):
    """A server whose prefix cache holds some snapshots, and has a folder."""
    cache = {"prefix_cache": 64 << 20, "prefix_cache_folder": tmp_path / "states"}
    loaded, engine_thread = start("demo", LoadSettings(threads=1, context=1024, sequences=1, **cache))
    limits, facts = Limits(loaded.model.config.context), ModelFacts.of(loaded)
    backend = Backend(engine_thread, loaded.tokenizer, loaded.template, ["demo"], limits=limits, facts=facts)
    with serving(build_app(backend)) as url:
        yield SimpleNamespace(url=url)


@pytest.fixture
def families(prefix_server):
    """All families of metrics; some have no samples yet."""
    with httpx.Client(base_url=prefix_server.url, timeout=GUARD) as http:
        return list(text_string_to_metric_families(http.get("/metrics").text))


SUFFIXES = {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"], "gauge": [""]}


def test_every_expression_of_the_dashboard_names_metrics(families):
    known = {family.name + suffix for family in families for suffix in SUFFIXES[family.type]}
    dashboard = json.loads(DASHBOARD.read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(expressions) >= len(dashboard["panels"]) > 10
    for expression in expressions:
        named = set(re.findall(r"\b(?:dflash:|process_)\w+", expression))
        assert named
        assert named <= known


def test_the_page_describes_every_metric(families):
    names = {
        family.name.removeprefix("dflash:") + "_total" * (family.type == "counter")
        for family in families
        if family.name.startswith("dflash:")
    }
    rows = [
        line.split("|")[1] for line in PAGE.read_text().splitlines() if re.search(r"\| (gauge|counter|histogram) \|", line)
    ]
    assert names == {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def session(**settings):
    facts = {"n_prompt": 7, "n_cached": 4, "added_at": 1.0, "started_at": 2.0, "interventions": []}
    return SimpleNamespace(**{**facts, **settings})


class Hashable(SimpleNamespace):
    __hash__ = object.__hash__


def test_steps_add_up_whatever_their_order(monkeypatch):
    clock = iter([10.0, 10.5, 12.5])
    monkeypatch.setattr("dflash.serve.admin.engine_counters.perf_counter", lambda: next(clock))
    counters = EngineCounters()
    one, other = (Hashable(**vars(session())) for _ in range(2))
    other.interventions = [Intervention(1, "LoopGuard", "cut", "because")]
    counters([(one, Step([1])), (other, Step([], prefilled=6))], 0.1)
    counters([(one, Step([2, 3, 4], drafted=4, accepted=2, draft=Draft([2, 3, 9, 9], [-1, 0, 1, 2])))], 0.2)
    counters([(one, Step([5], drafted=3, accepted=0, finish="stop")), (other, Step([], finish="error"))], 0.3)
    assert (counters.prompt_tokens, counters.cached_tokens, counters.output_tokens) == (7, 4, 5)
    assert (counters.drafts, counters.drafted, counters.accepted) == (2, 7, {2: 1, 0: 1})
    assert counters.finished == {"stop": 1, "error": 1}
    assert counters.recoveries == {("LoopGuard", "cut"): 1}
    assert counters.between_seconds.total == pytest.approx(2.5)
    assert counters.first_token_seconds.total == pytest.approx(9.0)
    assert counters.request_seconds.total == pytest.approx(2 * 11.5)
    assert counters.queue_seconds.total == pytest.approx(1.0)
    assert counters.step_seconds.total == pytest.approx(0.6)
    assert counters.batch.total == 3
    assert not counters._emitted_at


def test_a_bucket_holds_values_up_to_its_bound():
    buckets = BucketCounts((1, 2))
    for value in (0.5, 1, 1.5, 2, 7):
        buckets.add(value)
    assert buckets.counts == [2, 2, 1]


def test_a_failing_observer_is_removed_and_decoding_goes_on(http, server, caplog):
    calls = []

    def fail(events, seconds):
        calls.append(seconds)
        raise ValueError("nothing of the engine's")

    server.engine_thread.observers.insert(0, fail)
    assert http.post("/v1/completions", json={"prompt": "import os", "max_tokens": 3}).status_code == 200
    assert len(calls) == 1
    assert fail not in server.engine_thread.observers
    assert "an observer of steps failed" in caplog.text


def test_the_prefix_cache_is_counted(prefix_server):
    with httpx.Client(base_url=prefix_server.url, timeout=GUARD) as http:
        prompt = "The server reads its configuration file once at start-up. " * 8
        for _ in range(2):
            usage = http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 2}).json()["usage"]
        found = scrape(http)
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert found["dflash:prefix_cache_queries_total", ()] == 2 * usage["prompt_tokens"]
    assert found["dflash:prefix_cache_hits_total", ()] == found["dflash:prompt_tokens_cached_total", ()] == cached > 0
    assert 0 < found["dflash:prefix_cache_bytes", ()] <= found["dflash:prefix_cache_capacity_bytes", ()]


def test_metrics_of_two_apps_are_apart(app_of, lm):
    apps = [app_of("hello") for _ in range(2)]
    for app in apps:
        engine = app.engine_thread.engine
        engine.prefix_cache, engine.model, engine.n_preempted = None, lm.model, 0
    sent(apps[0], "POST", "/v1/completions", json={"prompt": "a"})
    first, second = (samples(sent(app, "GET", "/metrics").text) for app in apps)
    key = "dflash:request_success_total", (("finished_reason", "stop"),)
    assert (first[key], second[key]) == (1, 0)
