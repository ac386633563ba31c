"""Answers that are prefilled again beside sequences that decode, on the clock of a simulated H200 with a 27B."""

import heapq
from itertools import pairwise

import numpy as np
import pytest
import simulated_gpu
from simulated_gpu import SimulatedGpu, install, server

from dflash.decode.prefix_cache import PrefixCache
from dflash.decode.scheduling import reread, starter
from dflash.decode.scheduling.reread_share import _CREDIT, _OWN_TIME, _TRIED
from dflash.decode.session import Session

PAGE_BYTES = 34 * 256 << 10


@pytest.fixture
def engine_of(monkeypatch):
    monkeypatch.setattr(simulated_gpu, "CAPTURE_MS", 0.0)

    def make(n, *, rereads=True):
        """Return an engine for `n` sequences, whose clock the modules read from now on."""
        gpu = SimulatedGpu(n + 1)  # a model has a slot more than sequences
        install(monkeypatch, gpu)
        for module in (reread, starter):
            monkeypatch.setattr(module, "perf_counter", lambda: gpu.now)
        return server(gpu, prefix_cache=PrefixCache(1 << 40, PAGE_BYTES, reread=rereads), max_active=n)

    return make


class Load:
    """Clients that send sessions at their times and look at the clock when tokens come."""

    def __init__(self, engine):
        self.engine, self.gpu, self.times, self.coming = engine, engine.model, {}, []

    def send(self, session, at=0.0):
        heapq.heappush(self.coming, (at, len(self.times), session))
        self.times[session] = []
        return session

    def run(self, done, ended=lambda session: None):
        while not done():
            while self.coming and self.coming[0][0] <= self.gpu.now:
                self.engine.add(heapq.heappop(self.coming)[-1])
            for session, step in self.engine.step():
                self.times[session] += [self.gpu.now] * bool(step.tokens)
                if step.finish is not None:
                    ended(session)

    def gaps(self, session, since=0.0):
        times = np.array(self.times[session])
        return 1e3 * np.diff(times[times >= since])


def tokens(rng, n):
    return rng.integers(0, 13, n).tolist()


def agents(engine, n, n_turns, *, names, changed=False):
    """Replay `n` agents of `n_turns` beside a stream that never ends; return turns by their number, and that stream.

    Prompts grow by the answer and 150 tokens after a pause of 1.5 s; a changed answer has another first token.
    """
    load, rng, turns = Load(engine), np.random.default_rng(0), [[] for _ in range(n)]
    stream = load.send(Session(tokens(rng, 100), max_tokens=30_000))
    agent_of = {}

    def ask(agent, prompt):
        name = f"{agent}" if names else None
        session = load.send(
            Session(prompt, max_tokens=int(rng.integers(64, 300)), conversation=name), engine.model.now + 1.5
        )
        turns[agent].append(session)
        agent_of[session] = agent

    def ended(session):
        if len(turns[agent := agent_of[session]]) < n_turns:
            ask(agent, [*session.prompt_ids, *[5] * changed, *session.output_ids[changed:], *tokens(rng, 150)])

    for agent in range(n):
        ask(agent, tokens(rng, 1000 + 300 * agent))
    load.run(lambda: all(len(each) == n_turns and each[-1].finished for each in turns), ended)
    assert not stream.finished, "the device was never idle"
    return list(zip(*turns, strict=True)), load.gaps(stream)


def found(before, after):
    """Return the shares of turns that began after the whole answer before them, as far as its state is aligned."""
    ends = [(len(session.token_ids) - 1) // 64 * 64 for session in before]
    return np.mean([session.n_cached == end for session, end in zip(after, ends, strict=True)])


@pytest.mark.parametrize("names", [True, False])
def test_agents_find_the_states_after_their_answers_while_others_decode(engine_of, names):
    turns, _ = agents(engine_of(6), 5, 5, names=names)
    shares = [found(before, after) for before, after in pairwise(turns)]
    assert shares[0] == (1.0 if names else 0.0), "only a name tells of a first turn that there will be another one"
    assert np.mean(shares[1:]) >= 0.9


def test_where_it_is_switched_off_nothing_is_read_again(engine_of):
    engine = engine_of(8, rereads=False)
    turns, _ = agents(engine, 4, 3, names=True)
    assert found(turns[0], turns[1]) == 0.0
    assert engine.prefix_cache.stats.reread_tokens == 0


def unrelated(engine, n, total, name):
    """Let `n` clients send one new prompt after another; return all times at which tokens came."""
    load, rng, done = Load(engine), np.random.default_rng(1), []

    def ended(session):
        done.append(session)
        load.send(Session(tokens(rng, 300), max_tokens=int(rng.integers(64, 192)), conversation=name(len(done))))

    for i in range(n):
        load.send(Session(tokens(rng, 300), max_tokens=100 + 10 * i, conversation=name(-i)))
    load.run(lambda: len(done) >= total, ended)
    return list(load.times.values())


def test_unrelated_prompts_pay_nothing(engine_of):
    """Each step is that of a server which never reads an answer again."""
    seen = []
    for rereads in (True, False):
        engine = engine_of(6, rereads=rereads)
        seen.append((unrelated(engine, 6, 30, lambda _: None), engine.model.forwards))
        assert engine.prefix_cache.stats.reread_tokens == 0
    assert seen[0] == seen[1]


def test_names_without_next_turns_soon_count_no_more(engine_of):
    engine, n = engine_of(6), 60
    unrelated(engine, 6, n, str)
    assert 0 < engine.prefix_cache.stats.reread_tokens <= 192 * (_CREDIT + 1 + _TRIED * n)


def test_answers_that_come_back_changed_soon_count_no_more(engine_of):
    engine = engine_of(5)
    agents(engine, 4, 8, names=True, changed=True)
    assert engine.prefix_cache.stats.reread_hits == 0
    assert 0 < engine.prefix_cache.stats.reread_tokens <= 300 * (_CREDIT + 1)


def test_a_stream_has_short_and_few_gaps_while_an_answer_is_read_again(engine_of):
    """Pieces of 2,000 tokens beside decoding: at most 60 ms each, and a tenth of the time."""
    engine = engine_of(4)
    load, rng = Load(engine), np.random.default_rng(2)
    stream = load.send(Session(tokens(rng, 64), max_tokens=4000))
    agent = load.send(Session(tokens(rng, 1000), max_tokens=2000, conversation="agent"))
    load.run(lambda: agent.finished)
    since = engine.model.now
    cache = engine.prefix_cache
    load.run(lambda: cache.stats.reread_tokens >= 1900)
    gaps = load.gaps(stream, since)
    assert gaps.max() <= 60
    assert 8 <= sum(gaps > 20) <= 10
    assert cache.stats.reread_seconds <= 1.25 * _OWN_TIME * (engine.model.now - since)
    follower = load.send(Session([*agent.token_ids, 1, 2, 3], max_tokens=1))
    load.run(lambda: follower.finished)
    assert follower.n_cached == 2944


def test_a_next_turn_begins_after_the_pieces_that_were_read(engine_of):
    engine = engine_of(4)
    load, rng = Load(engine), np.random.default_rng(3)
    load.send(Session(tokens(rng, 64), max_tokens=4000))
    agent = load.send(Session(tokens(rng, 1000), max_tokens=2000, conversation="agent"))
    load.run(lambda: engine.prefix_cache.stats.reread_tokens > 500)
    follower = load.send(Session([*agent.token_ids, 1, 2, 3], max_tokens=1))
    load.run(lambda: follower.finished)
    assert 960 + 500 < follower.n_cached < 2944
    assert engine.prefix_cache.stats.reread_tokens == follower.n_cached - 960, "it has read the rest itself"


def test_nothing_is_read_again_while_a_request_waits_to_start(engine_of):
    engine = engine_of(2)
    load, rng = Load(engine), np.random.default_rng(4)
    load.send(Session(tokens(rng, 64), max_tokens=2000))
    agent = load.send(Session(tokens(rng, 2000), max_tokens=400, conversation="agent"))
    others = [load.send(Session(tokens(rng, 100), max_tokens=300)) for _ in range(3)]
    load.run(lambda: agent.finished)
    load.run(lambda: engine.waiting == 0)
    assert engine.prefix_cache.stats.reread_tokens == 0
    load.run(lambda: engine.prefix_cache.stats.reread_tokens > 0)
    assert not others[-1].finished
