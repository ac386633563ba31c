"""Sessions that begin with a snapshot of the prefix cache: they produce the tokens of a cold start, and nothing leaks."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from oracles import DraftingState, naive
from toy import State, Toy, finish

from dflash.decode.drafting.draft import EMPTY, Draft
from dflash.decode.drafting.drafter import Drafter, Plain, Strategy
from dflash.decode.engine import MAX_FAILURES, Engine
from dflash.decode.prefix_cache import PrefixCache
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.errors import OutOfMemory, RequestError

N_VOCAB = 13
END = 12
PAGE_BYTES = 0  # so that few bytes are few snapshots
MUCH = 10**9


def engine_of(toy, capacity=MUCH, *, min_gain=1, exact=False, reread=False, max_copied=None, **settings):
    cache = PrefixCache(capacity, PAGE_BYTES, min_gain=min_gain, exact=exact, reread=reread, max_copied=max_copied)
    return Engine(toy, prefix_cache=cache, **settings), cache


def run(engine, *sessions):
    list(engine.run(sessions))
    for session in sessions:
        assert session.error is None
    return [session.output_ids for session in sessions]


@dataclass(frozen=True)
class Follower(Drafter):
    """Notes all tokens that it observes, keeps them in snapshots, and drafts some of them: chains or trees."""

    tree: bool = False

    def start(self, session, model, snapshot=None):
        return _Following(self, session, snapshot)


class _Copy:
    n_bytes = 5

    def __init__(self, seen):
        self.seen, self.closed = list(seen), False

    def close(self):
        assert not self.closed
        self.closed = True


class _Following:
    capture = (2,)

    def __init__(self, drafter, session, snapshot):
        self.drafter, self.session = drafter, session
        self.first = 0 if snapshot is not None else session.n_prefilled
        self.seen = list(snapshot.seen) if snapshot is not None else []
        assert snapshot is None or (not snapshot.closed and len(self.seen) == session.n_prefilled)
        assert self.seen == session.token_ids[self.first : session.n_prefilled]

    def propose(self, max_draft):
        n = min(max_draft, 6)
        tokens = (self.seen[-n:] if n else []) + [0] * max(0, n - len(self.seen))
        parents = [i // 2 - 1 for i in range(n)] if self.drafter.tree else None
        return Draft(tokens, parents) if n else Draft([])

    def observe(self, step, out, rows):
        assert (out.captured[2][rows] == out.hidden[rows] + 2).all()
        new = [int(token) for token, _ in out.hidden[rows]]
        self.seen += new
        assert self.seen == self.session.token_ids[self.first : self.first + len(self.seen)]

    def snapshot(self):
        return _Copy(self.seen)

    def close(self):
        pass


def test_a_prompt_is_read_once():
    toy = Toy(N_VOCAB)
    engine, cache = engine_of(toy)
    prompt = list(range(10))
    (first,) = run(engine, Session(prompt, max_tokens=3))
    toy.forwards.clear()
    again = Session(prompt, max_tokens=3)
    assert run(engine, again) == [first]
    # the last token is read by the forward that picks the next one: no token goes through the recurrence twice
    assert toy.forwards == [[(1, False)]] * 3
    assert (again.n_cached, cache.stats.hits, cache.stats.hit_tokens) == (9, 1, 9)


def test_the_next_turn_begins_after_the_answer():
    toy = Toy(N_VOCAB)
    engine, _ = engine_of(toy)
    prompt = [1, 2, 3, 4]
    (answer,) = run(engine, Session(prompt, max_tokens=5))
    turn = [*prompt, *answer, 7, 7]
    session = Session(turn, max_tokens=5)
    assert run(engine, session) == [naive(toy, turn, Sampling(), 5)]
    assert session.n_cached == len(prompt) + len(answer) - 1


def test_an_answer_that_is_rendered_otherwise_costs_that_turn_only():
    toy = Toy(N_VOCAB)
    engine, _ = engine_of(toy)
    prompt = [1, 2, 3, 4]
    (answer,) = run(engine, Session(prompt, max_tokens=5))
    turn = [*prompt, (answer[0] + 1) % N_VOCAB, *answer[1:], 7]
    session = Session(turn, max_tokens=5)
    assert run(engine, session) == [naive(toy, turn, Sampling(), 5)]
    assert session.n_cached == len(prompt) - 1


def test_boundaries_are_saved_where_roles_begin():
    toy = Toy(N_VOCAB)
    engine, cache = engine_of(toy)
    run(engine, Session([1, 2, 3, 4, 5, 6, 7, 8], max_tokens=0, boundaries=(3, 6)))
    assert len(cache) == 0  # a session without output reads nothing
    run(engine, Session([1, 2, 3, 4, 5, 6, 7, 8], max_tokens=1, boundaries=(3, 6)))
    assert len(cache) == 4  # two boundaries, the end of the prompt and that of the session
    for prompt, n in [([1, 2, 3, 9, 9], 3), ([1, 2, 3, 4, 5, 6, 9], 6), ([1, 2, 9], 0), ([1, 2, 3], 2), ([1, 2, 3, 4], 3)]:
        session = Session(prompt, max_tokens=2)
        assert run(engine, session) == [naive(toy, prompt, Sampling(), 2)]
        assert session.n_cached == n, prompt


@pytest.mark.parametrize(("most_copies", "chunks"), [(0, [4, 4, 2]), (1, [8, 2]), (8, [10])])
def test_states_are_saved_where_chunks_may_end_also_inside_of_a_chunk(most_copies, chunks):
    toy = Toy(N_VOCAB)
    toy.chunk_alignment, toy.max_state_copies = 4, most_copies
    engine, cache = engine_of(toy, chunk=16, exact=True)
    first = Session(list(range(11)), max_tokens=6, boundaries=(3, 6, 9), strategy=Strategy(Follower()))
    assert run(engine, first) == [naive(toy, [*range(11)], Sampling(), 6)]
    assert [n for rows in toy.forwards for n, prefill in rows if prefill] == chunks
    assert len(cache) == 2  # 4 and 8; states elsewhere have other bits
    for n in (12, 9, 7, 5):
        session = Session([*range(n - 1), 9], max_tokens=3, use_prefix_cache=True, strategy=Strategy(Follower()))
        assert run(engine, session) == [naive(toy, [*range(n - 1), 9], Sampling(), 3)]
        assert session.n_cached == (n - 1) // 4 * 4


class NotingState(DraftingState):
    """State of `Noting`."""

    def observe(self, step, out, rows):
        self.drafter.unread.append(self)

    def snapshot(self):
        assert self not in self.drafter.unread, "saved before the end of the step"


@dataclass(frozen=True)
class Noting(Drafter):
    """Reads what sessions have noted at the end of a step; drafts nothing."""

    unread: list = field(default_factory=list, compare=False)
    reads: list = field(default_factory=list, compare=False)

    def start(self, session, model, snapshot=None):
        return NotingState(self, session)

    def propose(self, drafter_states, max_drafts):
        return [EMPTY] * len(drafter_states)

    def end_step(self, drafter_states):
        if self.unread:
            self.reads.append(len(self.unread))
        self.unread.clear()


def test_drafters_read_the_prompts_of_all_sessions_together_before_states_inside_of_them_are_saved():
    toy, drafter = Toy(N_VOCAB), Noting()
    toy.chunk_alignment, toy.max_state_copies = 4, 8
    engine, cache = engine_of(toy, chunk=64, exact=True)
    sessions = [Session([i, *range(10)], max_tokens=1, boundaries=(5,), strategy=Strategy(drafter)) for i in range(3)]
    run(engine, *sessions)
    assert drafter.reads[:3] == [3, 3, 3]  # up to 4, up to 8, the rest
    assert len(cache) == 6


def test_a_chunk_ends_at_a_saved_length_if_there_is_no_memory_for_a_copy(monkeypatch):
    toy = Toy(N_VOCAB)
    toy.chunk_alignment, toy.max_state_copies = 4, 8

    def full(_state, _n):
        raise OutOfMemory("planted")

    monkeypatch.setattr(State, "copy_after", full)
    engine, cache = engine_of(toy, chunk=16, exact=True)
    run(engine, Session(list(range(11)), max_tokens=2))
    assert [n for rows in toy.forwards for n, prefill in rows if prefill] == [8, 2]
    assert len(cache) == 1


@pytest.mark.parametrize(("alignment", "cached"), [(1, [13, 6, 0, 3]), (4, [12, 4, 0, 0])])
def test_without_a_recurrent_state_any_common_beginning_is_read_once(alignment, cached):
    toy = Toy(N_VOCAB, recurrent=False)
    toy.chunk_alignment = alignment
    engine, cache = engine_of(toy, min_gain=3, chunk=8, exact=True)
    base = [*range(11), 3, 3, 3, 3, 3]
    run(engine, Session(base, max_tokens=4))
    found = []
    for n in (13, 6, 2, 3):
        session = Session([*base[:n], 11, 11, 11, 11], max_tokens=2)
        assert run(engine, session) == [naive(toy, session.token_ids[: n + 4], Sampling(), 2)]
        found.append(session.n_cached)
    assert found == cached
    needs_state = Session([*base[:10], 11, 11], strategy=Strategy(Follower()), max_tokens=1)
    run(engine, needs_state)
    assert (needs_state.n_cached, cache.stats.drafter_misses) == (0, 1)
    engine.close()
    assert toy.leaked == (0, 0, 0)


def test_a_session_that_fails_before_its_output_leaves_the_cache_as_it_was():
    toy = Toy(N_VOCAB)
    engine, cache = engine_of(toy)
    run(engine, Session([1, 2, 3, 4], max_tokens=2))
    before = len(cache)

    def fails(spans):
        if not spans[0].prefill:
            raise RuntimeError("planted")

    toy.before_forward = fails
    session = Session([1, 2, 3, 4, 5, 6, 7], max_tokens=2, boundaries=(5,))
    with pytest.raises(RuntimeError):
        list(engine.stream(session))
    toy.before_forward = lambda spans: None
    assert (len(cache), cache.stats.aborts) == (before, 2)
    again = Session([1, 2, 3, 4, 9], max_tokens=2)
    run(engine, again)
    assert again.n_cached == 3  # the entry of before


@pytest.mark.parametrize(("alignment", "n_steps", "cached"), [(1, 0, 0), (1, 1, 5), (1, 3, 15), (4, 1, 4), (4, 4, 16)])
def test_a_request_that_was_cancelled_in_its_prompt_goes_on_when_it_comes_again(alignment, n_steps, cached):
    toy = Toy(N_VOCAB)
    toy.chunk_alignment = alignment
    engine, _ = engine_of(toy, min_gain=3, chunk=5, exact=True)
    prompt = [i % 11 for i in range(40)]
    session = engine.add(Session(prompt, max_tokens=3))
    for _ in range(n_steps):
        engine.step()
    assert not session.output_ids
    session.cancel()
    engine.step()
    assert session.finish_reason == "cancelled"
    again = Session(prompt, max_tokens=3)
    assert run(engine, again) == [naive(toy, prompt, Sampling(), 3)]
    assert again.n_cached == cached
    engine.close()
    assert toy.leaked == (0, 0, 0)


def test_a_cancelled_request_ends_though_its_state_can_not_be_saved():
    toy = Toy(N_VOCAB)
    engine, cache = engine_of(toy, min_gain=3, chunk=5)
    session = engine.add(Session([1] * 30, max_tokens=3))
    engine.step()
    session.state.snapshot = lambda: 1 / 0
    session.cancel()
    engine.step()
    assert (session.finish_reason, len(cache), toy.leaked) == ("cancelled", 0, (0, 0, 0))


def test_a_request_without_the_cache_leaves_nothing_when_it_is_cancelled():
    engine, cache = engine_of(Toy(N_VOCAB), chunk=5)
    session = engine.add(Session([1] * 30, max_tokens=3, use_prefix_cache=False))
    for _ in range(3):
        engine.step()
    session.cancel()
    engine.step()
    assert (session.finish_reason, len(cache)) == ("cancelled", 0)


def test_the_least_recently_used_goes_first_and_forks_are_spared():
    toy = Toy(N_VOCAB)
    system = [1] * 20
    engine, cache = engine_of(toy, capacity=8 * 4)  # four snapshots of 8 bytes
    run(engine, Session([*system, 2, 2], max_tokens=1, boundaries=(20,)))
    run(engine, Session([*system, 3, 3], max_tokens=1, boundaries=(20,)))
    for i in range(4, 12):
        session = Session([*system, i, i], max_tokens=1, boundaries=(20,))
        run(engine, session)
        assert session.n_cached == 20
    assert len(cache) == 4
    assert cache.stats.n_bytes == 32
    assert cache.stats.evictions > 0


def test_copies_of_states_have_a_limit_of_their_own():
    """The pages that snapshots share with sessions are there in any case; copies take memory that others may need."""
    toy = Toy(N_VOCAB)
    engine, cache = engine_of(toy, max_copied=8 * 4)  # four snapshots of 8 bytes, pages as many as there are
    for i in range(12):
        run(engine, Session([i, *[1] * 300], max_tokens=1))
        assert len(cache) == min(2 * (i + 1), 4)  # after the prompt and after the answer
    assert cache.stats.n_bytes == 8 * 4  # pages take nothing here


def test_snapshots_give_way_to_running_sessions():
    toy = Toy(N_VOCAB, pages=2)
    engine, cache = engine_of(toy)
    run(engine, Session([1, 2, 3], max_tokens=2))
    assert toy.pools.free_pages < 2
    session = Session([4] * 300, max_tokens=2)  # two pages
    assert run(engine, session) == [naive(toy, [4] * 300, Sampling(), 2)]
    assert cache.stats.evictions >= 1
    engine.close()
    assert toy.leaked == (0, 0, 0)


def test_requests_may_go_without():
    toy = Toy(N_VOCAB)
    engine, cache = engine_of(toy)
    for _ in range(2):
        run(engine, Session([1, 2, 3, 4], max_tokens=8, use_prefix_cache=False))
    assert (len(cache), cache.stats.queries) == (0, 0)
    with pytest.raises(RequestError, match="at least 0"):
        PrefixCache(-1, 1)


@given(st.integers(0, 10**6), st.booleans())
@example(427678, True)
@settings(max_examples=120, deadline=None)
def test_warm_is_cold(number, recurrent):
    """Random prompts with common prefixes, drafters, samplings, boundaries, sizes, cancels and failures."""
    rng = np.random.default_rng(number)
    toy = Toy(N_VOCAB, slots=int(rng.integers(1, 4)), rows=int(rng.integers(16, 80)), recurrent=recurrent)
    toy.chunk_alignment, toy.max_state_copies = int(rng.choice([1, 1, 4])), int(rng.choice([0, 1, 8]))
    capacity, copied = int(rng.choice([0, 8, 40, 200, MUCH])), int(rng.choice([8, 24, MUCH]))
    engine, cache = engine_of(
        toy,
        capacity,
        min_gain=int(rng.integers(1, 6)),
        chunk=int(rng.integers(4, 32)),
        exact=bool(rng.random() < 0.3),
        reread=bool(rng.random() < 0.5),
        max_copied=copied,
    )
    texts, fails, in_a_row = [[]], False, 0

    def before(spans):
        nonlocal in_a_row
        in_a_row = in_a_row + 1 if fails and in_a_row < MAX_FAILURES - 1 else 0
        if in_a_row:
            raise RuntimeError("planted")

    toy.before_forward = before
    for _ in range(12):
        sessions, want = [], []
        for _ in range(int(rng.integers(1, 4))):
            base = texts[rng.integers(len(texts))]
            cut = int(rng.integers(0, len(base) + 1)) if rng.random() < 0.5 else len(base)
            prompt = [*base[:cut], *rng.integers(0, 12, rng.integers(1, 9)).tolist()]
            seed = int(rng.integers(0, 5))
            sampling = [Sampling(), Sampling(temperature=0.8, seed=seed)][rng.integers(2)]
            drafter = [Plain().drafter, Follower(), Follower(tree=True)][rng.integers(3)]
            session = Session(
                prompt,
                sampling=sampling,
                strategy=Strategy(drafter),
                max_tokens=int(rng.integers(1, 12)),
                eos=(END,),
                boundaries=rng.integers(0, len(prompt) + 2, rng.integers(0, 4)).tolist(),
                use_prefix_cache=rng.random() < 0.9,
            )
            sessions.append(session)
            want.append(naive(toy, prompt, sampling, session.max_tokens, seed=seed, eos=(END,)))
        ended_early = rng.random() < 0.3
        for session in sessions:
            engine.add(session)
        for step in range(int(rng.integers(0, 6)) if ended_early else 10**6):
            fails = ended_early and rng.random() < 0.1
            engine.step()
            if not engine.busy:
                break
            assert step < 10**4
        fails = False
        for session in sessions:
            session.cancel() if not session.finished else None
        finish(engine)
        for session, output in zip(sessions, want, strict=True):
            got = session.output_ids
            assert got == output[: len(got)]
            assert session.finish_reason in ("cancelled", "error") or got == output
            texts.append(session.token_ids)
        assert cache.stats.n_bytes <= capacity
        assert sum(node.value.snapshot.n_bytes for node in cache._nodes) <= copied
        assert len(cache) == toy.pools.snapshots
    engine.close()
    assert toy.leaked == (0, 0, 0)
