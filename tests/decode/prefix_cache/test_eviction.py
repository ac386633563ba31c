"""Which snapshots leave a full cache: those that others have replaced first, the last ones of living conversations last."""

import pytest
from toy import Toy, finish

from dflash.decode.engine import Engine
from dflash.decode.prefix_cache import PrefixCache
from dflash.decode.prefix_cache.eviction import PROTECTED, RECENT
from dflash.decode.scheduling import reread
from dflash.decode.session import Session

SNAPSHOT = 8
"""Bytes of a snapshot of the toy, whose pages cost nothing here."""


@pytest.fixture
def cache_of():
    """Makes ``ask(prompt, conversation)``, which runs a session and returns how many of its tokens came from the cache."""
    engines = []

    def make(n_snapshots):
        cache = PrefixCache(SNAPSHOT * n_snapshots, 0, exact=False, min_gain=4)
        engines.append(Engine(Toy(13), prefix_cache=cache))

        def ask(prompt, conversation=None):
            session = Session(prompt, max_tokens=1, conversation=conversation)
            list(engines[-1].run([session]))
            return session.n_cached

        ask.cache = cache
        return ask

    yield make
    for engine in engines:
        engine.close()


def side(number):
    """A prompt that shares nothing with others."""
    return [10, number % 10, number // 10, *range(8)]


def test_turns_of_one_conversation_replace_their_own_states(cache_of):
    """A conversation of many turns needs one state, so that another one that waits keeps its own."""
    ask = cache_of(3)
    waiting, busy = [1] * 10, [2] * 10
    ask(waiting)
    for turn in range(10):
        assert ask(busy) == (len(busy) - 6 if turn else 0)
        busy += [3] * 5
    assert ask([*waiting, 4, 4, 4, 4, 4]) == 9


def test_an_answer_that_was_read_again_replaces_its_prompt_once_a_turn_has_used_it(monkeypatch):
    """The next turn may hold another answer. So the state of the answer leaves before that of its prompt."""
    monkeypatch.setattr(reread, "DELAY", 0.0)
    toy = Toy(13)
    toy.chunk_alignment = 4
    cache = PrefixCache(SNAPSHOT * 2, 0, min_gain=1, reread=True)
    engine = Engine(toy, prefix_cache=cache)

    def ask(prompt, n=1):
        session = Session(prompt, max_tokens=n)
        list(engine.run([session]))
        finish(engine)
        return session

    first = ask([1] * 10, 9)
    assert cache.stats.reread_tokens == 8
    ask([2] * 10)
    assert ask([*first.prompt_ids, 5, 5]).n_cached == 8
    cache.clear()
    first = ask([1] * 10, 9)
    assert len(cache) == 2
    assert ask([*first.prompt_ids, 5]).n_cached == 8
    assert len(cache) == 1, "the answer came back changed"
    cache.clear()
    second = ask(ask([1] * 10, 9).token_ids + [5], 1)
    assert second.n_cached == 16
    ask([2] * 10)
    assert ask([*second.token_ids, 5]).n_cached == 16
    engine.close()


def test_the_beginning_that_conversations_share_stays(cache_of):
    ask = cache_of(4)
    system = [1] * 10
    ask(system + [0])
    for number in range(2, 12):
        assert ask([*system, number, number, 5, 6, 7, 8]) == 10
    assert len(ask.cache) == 4


@pytest.mark.parametrize(("name", "n_cached"), [("a", 9), (None, 0)])
def test_a_named_conversation_outlives_side_requests(cache_of, name, n_cached):
    ask = cache_of(4)
    ask([1] * 10, name)
    for number in range(20):
        ask(side(number))
    assert ask([1] * 10 + [2] * 5, name) == n_cached


def test_side_requests_of_the_same_name_leave_the_conversation_its_state(cache_of):
    ask = cache_of(3)
    ask([1] * 14, "a")
    for number in range(RECENT):
        ask(side(number), "a")
    assert ask([1] * 14 + [2] * 5, "a") == 13


def test_a_state_that_its_conversation_uses_no_longer_goes(cache_of):
    """As after a compaction: the new beginning is shorter than what it replaces."""
    ask = cache_of(3)
    ask([1] * 90, "a")
    compacted = [3] * 8
    for _ in range(RECENT + 2):
        ask(compacted, "a")
        compacted += [4, 5, 6, 7]
    for number in range(4):
        ask(side(number))
    assert ask([*compacted, 6], "a") == len(compacted) - 5
    assert ask([1] * 90, "a") == 0


def test_conversations_protect_a_part_of_the_cache_only(cache_of):
    """A quarter of eight states is left for sessions without a name."""
    ask = cache_of(8)
    for number in range(12):
        ask(side(number), f"conversation {number}")
    for number in (20, 21):
        ask(side(number))
    assert ask([*side(20), 9]) > 0
    assert ask([*side(11 - int(8 * PROTECTED) + 1), 9]) > 0, "the conversation used longest ago of those protected"


def test_names_are_forgotten_with_their_states(cache_of):
    ask = cache_of(4)
    for number in range(20):
        ask(side(number), f"conversation {number}")
        ask(side(number), f"conversation {number}")
    assert ask.cache.n_conversations <= 4
    ask.cache.clear()
    assert (ask.cache.n_conversations, dict(ask.cache._turns)) == (0, {})
