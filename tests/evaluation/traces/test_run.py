"""Runs against a transport that answers at once, on a clock that only waits and answers move."""

import json
import threading

import pytest
from traces import GROWING, Answering, Seconds, trace, traced, write

from dflash.errors import DFlashError, RequestError
from dflash.evaluation.traces import Goodput, TraceLimits, TraceReport, load_traces, replay_traces
from dflash.evaluation.traces.measures import measured
from dflash.evaluation.traces.run import MAX_FAILURES, n_planned
from dflash.evaluation.traces.sent import SentRequest


@pytest.fixture
def traces(tmp_path):
    return load_traces(write(tmp_path, trace(), trace(GROWING[:2], "two")))


def replayed(traces, end=float("inf"), n_clients=1, seed=0, refuse=(), **limits):
    clock = Seconds(end)
    transport = Answering(clock, refuse=refuse)
    return transport, replay_traces(transport, traces, n_clients, TraceLimits(**limits), seed=seed, clock=clock)


def test_one_client_sends_one_request_after_the_other(traces):
    transport, run = replayed(traces[:1], think_scale=0.5)
    assert [len(prompt) for prompt in transport.measured] == [100, 160, 170, 90, 185]
    assert transport.clock.waits == [2, 1, 0.5, 0.5]
    assert [sent.n_received for sent in run.requests] == [20, 30, 5, 4, 3]
    ends = [sent.arrivals[-1] for sent in run.requests]
    assert [sent.began - end for sent, end in zip(run.requests[1:], ends, strict=False)] == [2, 1, 0.5, 0.5]
    assert transport.measured[1][100:120] == [1200 + i for i in range(20)]


def test_pauses_have_a_maximum(traces):
    transport, _ = replayed(traces[:1], think_scale=2.0, think_max=3.0)
    assert transport.clock.waits == [3, 3, 2, 2]


def test_prompts_depend_on_traces_and_seed_alone(traces):
    first, second, other = (replayed(traces, seed=seed)[0].measured for seed in (1, 1, 2))
    assert first == second
    assert first[0][:20] != other[0][:20]


def test_every_trace_is_replayed_and_every_client_has_a_session(traces):
    assert n_planned(traces, 1, TraceLimits()) == 7
    assert len(replayed(traces)[1].requests) == 7
    assert n_planned(traces, 3, TraceLimits(turns=2)) == 6
    _, run = replayed(traces, n_clients=3, turns=2)
    assert len({sent.session for sent in run.requests}) == 3
    assert len(run.requests) == 6


def test_limits_of_a_run(traces):
    assert [sent.turn for sent in replayed(traces, turns=1)[1].requests] == [0, 0]
    assert len(replayed(traces, requests=3)[1].requests) == 3
    _, run = replayed(traces, max_context=190)
    assert [sent.turn for sent in run.requests] == [0, 1, 2, 3, 4, 0, 1]
    _, run = replayed(traces, max_context=189)
    assert [sent.turn for sent in run.requests] == [0, 0]
    assert run.n_left_out == 2
    with pytest.raises(RequestError, match="the shortest first request has 120 tokens, at most 100 fit"):
        replayed(traces, max_context=100)
    for wrong in ({"turns": 0}, {"scale": 0}, {"think_scale": -1.0}, {"think_max": -1.0}, {"seconds": float("nan")}):
        with pytest.raises(RequestError, match=next(iter(wrong))):
            TraceLimits(**wrong)


def test_time_ends_a_run_and_until_then_sessions_begin_anew(traces):
    _, run = replayed(traces, end=200.0, seconds=200.0)
    sessions = list(dict.fromkeys(sent.session for sent in run.requests))
    assert len(sessions) > 2
    assert max(sent.began for sent in run.requests) < 200 <= run.seconds + 20
    assert n_planned(traces, 1, TraceLimits(seconds=200.0)) is None


def test_a_refused_request_ends_its_session(traces):
    _, run = replayed(traces, refuse=[1])
    assert [(sent.turn, sent.error) for sent in run.requests] == [(0, None), (1, "refused"), (0, None), (1, None)]
    report = TraceReport([run], traces, TraceLimits(), "target", {})
    assert report.failures == ["one 1.0, turn 2: refused"]
    assert "!!! one 1.0, turn 2: refused" in repr(report)


def test_a_server_that_refuses_everything_ends_the_run(traces):
    with pytest.raises(DFlashError, match="refused"):
        replayed(traces, refuse=range(MAX_FAILURES), seconds=1e9)


def test_an_interrupt_is_passed_on(traces):
    """Also from the thread of a client; no thread stays."""
    before = threading.active_count()

    class Interrupted(Answering):
        def send(self, prompt_ids, n_output, on_tokens, conversation):
            if len(self.prompts) == 2:
                raise KeyboardInterrupt
            return super().send(prompt_ids, n_output, on_tokens, conversation)

    with pytest.raises(KeyboardInterrupt):
        replay_traces(Interrupted(), traces, clock=Seconds())
    assert threading.active_count() == before


def sent(began, arrivals, n=None, turn=0, client=0, **fields):
    n = len(arrivals) if n is None else n
    return SentRequest(client, "s", turn, 100, n, began=began, arrivals=arrivals, n_received=n, **fields)


def test_latencies_of_a_request():
    one = sent(1.0, [1.5, 1.75, 2.5], n=5)
    assert (one.first_token, one.latency, one.per_token, one.gaps) == (0.5, 1.5, 0.25, [0.25, 0.75])
    single = sent(1.0, [2.0])
    assert (single.first_token, single.per_token, single.gaps) == (1.0, None, [])
    assert sent(1.0, []).latency is None
    json.dumps([each.as_dict() for each in (one, single, sent(1.0, []))])


def test_goodput_counts_requests_within_limits():
    good = Goodput.parse(["ttft:500", "tpot:250"])
    fast, slow, late = sent(0, [0.5, 0.75]), sent(0, [0.5, 0.76]), sent(0, [0.51, 0.52])
    assert [good.holds(each) for each in (fast, slow, late, sent(0, [0.4]))] == [True, False, False, True]
    assert not good.holds(sent(0, [0.1], error="refused"))
    assert not Goodput.parse(["e2el:700"]).holds(fast)
    for wrong in ("ttft", "ttft:-1", "ttft:x", "tpt:5", "ttft:inf"):
        with pytest.raises(RequestError, match=wrong):
            Goodput.parse([wrong])


def test_what_later_turns_found():
    later = {"turn": 1, "n_before": 50, "n_own": 20}
    found = [
        sent(0, [1], n_cached=0),
        sent(1, [2], n_cached=69, n_answered=20, **later),
        sent(2, [3], n_cached=49, n_answered=20, **later),
        sent(3, [4], n_cached=0, n_answered=21, **later),
        sent(4, [5], turn=2, n_cached=30),
    ]
    cache = measured(run_of(found))["cache"]
    assert [cache[name] for name in ("cached", "reusable", "later", "answer_fits", "answer_found")] == [148, 207, 3, 2, 1]
    assert [cache[name] for name in ("answer", "prompt", "nothing", "first")] == [1, 1, 1, 0]
    assert measured(run_of([sent(0, [1])]))["cache"] is None


def run_of(requests, n_clients=1):
    from dflash.evaluation.traces.run import TraceRun

    ended = max(each.arrivals[-1] for each in requests if each.arrivals)
    return TraceRun(n_clients, ended, requests, True, 0)


def test_numbers_of_a_run():
    requests = [sent(0.0, [1.0, 1.5, 2.0]), sent(0.0, [2.0, 2.25, 2.5, 4.0], client=1), sent(3.0, [], error="gone")]
    found = measured(run_of(requests, 2), Goodput({"ttft": 1000.0}))
    assert found["output_tokens_per_second"] == 7 / 4
    assert found["tokens_per_second"] == 207 / 4
    assert found["interactivity"] == pytest.approx((2 + 1.5) / 2)
    assert found["first_token"] == {"median": 1.5, "p99": pytest.approx(1.99), "longest": 2.0}
    assert found["gap"]["longest"] == 1.5
    assert (found["requests"], found["errors"]) == (3, 1)
    assert found["goodput"]["limits_ms"] == {"ttft": 1000.0}
    assert (found["goodput"]["requests"], found["goodput"]["requests_per_second"]) == (1, 0.25)
    assert found["goodput"]["share"] == pytest.approx(1 / 3)
    assert [each["output_tokens"] for each in found["by_client"]] == [3, 4]


def test_short_and_scaled_runs_are_named(traces):
    long = run_of([sent(0, [900.0])])
    assert TraceReport([long], traces, TraceLimits(), "t", {}).shape_run == []
    for limits, reason in (
        (TraceLimits(scale=2), "lengths divided by 2"),
        (TraceLimits(think_scale=0.5), "pauses times 0.5"),
        (TraceLimits(think_max=5), "pauses of at most 5 s"),
        (TraceLimits(turns=3), "at most 3 turns"),
    ):
        assert TraceReport([long], traces, limits, "t", {}).shape_run == [reason]
    short = TraceReport([long, run_of([sent(0, [899.0])])], traces, TraceLimits(), "t", {})
    assert short.shape_run == ["899 s of at least 900"]
    assert "shape run: 899 s of at least 900" in repr(short)


def test_a_session_in_the_middle_of_a_block_is_sent_whole(tmp_path):
    rows = [traced(17, 3, [1]), traced(19, 3, [1])]
    transport, _ = replayed(load_traces(write(tmp_path, trace(rows))))
    assert transport.measured[1][:17] == transport.measured[0]
    assert len(transport.measured[1]) == 19
