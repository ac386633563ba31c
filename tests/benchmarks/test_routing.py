"""The simulation of `benchmarks/routing.py`: the order of the rules, and the law that makes it believable."""

import json
import random
import runpy
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace

import pytest

import dflash

SCRIPT = Path(dflash.__file__).parents[1] / "benchmarks" / "routing.py"


@pytest.fixture(scope="module")
def script():
    return SimpleNamespace(**runpy.run_path(str(SCRIPT)))


@pytest.fixture(scope="module")
def recorded(script):
    return json.loads(script.RECORDED.read_text())


def run(script, recorded, policy, n=4, **costs):
    return script.summary(*script.simulate(policy, recorded, n, script.Costs(**costs), sessions=16, requests=40), n)


def test_the_rules_come_in_order(script, recorded):
    found = {policy: run(script, recorded, policy) for policy in script.POLICIES}
    assert found["affinity 16"]["hit rate"] > found["round robin"]["hit rate"] + 0.1
    assert found["affinity 16"]["hit rate"] > found["least loaded"]["hit rate"] + 0.1
    assert found["affinity 16"]["hit rate"] >= found["session id"]["hit rate"] - 0.02
    assert found["affinity 16"]["gpu s"] < found["round robin"]["gpu s"]
    assert found["affinity 16"]["ttft p50"] < found["round robin"]["ttft p50"]


def test_one_replica_makes_all_rules_equal(script, recorded):
    runs = [run(script, recorded, policy, n=1) for policy in script.POLICIES]
    assert all(found["hit rate"] == pytest.approx(runs[0]["hit rate"], abs=1e-9) for found in runs)


def test_without_a_cache_nothing_hits_and_prefill_is_paid(script, recorded):
    without, much = (run(script, recorded, "affinity 16", cache=cache) for cache in (0, 10**7))
    assert without["hit rate"] == 0 < much["hit rate"]
    assert without["gpu s"] > much["gpu s"]


def test_a_session_grows_and_has_side_requests(script, recorded):
    session = script.Session(random.Random(3), {"opencode": recorded["opencode"]}, script.Costs(turns=30))
    prompts = [hints.blocks for hints, _ in takewhile(bool, iter(session.next, None))]
    title, *main = prompts
    assert len(title) < 10 < len(main[0])
    assert len(main[-1]) > 2 * len(main[0])
    assert all(later[: len(main[0]) // 2] == main[0][: len(main[0]) // 2] for later in main if len(later) > 10)


def test_the_rule_alone_beats_round_robin_on_recorded_sessions(script, recorded):
    sessions = []
    for agent, found in recorded.items():
        for rows in found:
            session = script.Session(random.Random(1), {agent: [rows]}, script.Costs(turns=1))
            sessions.append([session.next()[0] for _ in rows])
    hits = script.router_hits(script.mixed(sessions, random.Random(0)), 8)
    assert hits["affinity"] > 0.8
    assert hits["affinity"] > hits["round robin"] + 0.2
