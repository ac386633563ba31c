"""The rule that chooses a replica."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash.errors import RequestError
from dflash.serve.routing.hints import RouteHints, blocks_of
from dflash.serve.routing.prefix_affinity import PrefixAffinity


def hints(*blocks, session=None, coverage=1.0):
    return RouteHints(blocks, coverage, session)


@pytest.mark.parametrize(("n_shared", "chosen"), [(3, "a"), (2, "b")])
def test_a_share_below_three_tenths_does_not_count(n_shared, chosen):
    rule = PrefixAffinity()
    rule.note(hints(*range(n_shared)), "a")
    assert rule.rank(hints(*range(n_shared), *range(100, 110 - n_shared)), {"a": 1, "b": 0})[0] == chosen


def test_the_end_that_fills_no_block_counts_as_not_shared():
    rule = PrefixAffinity()
    rule.note(hints(1), "a")
    assert rule.rank(hints(1, coverage=0.5), {"a": 1, "b": 0})[0] == "a"
    assert rule.rank(hints(1, coverage=0.2), {"a": 1, "b": 0})[0] == "b"


@pytest.mark.parametrize(
    ("loads", "chosen"),
    [
        ({"a": 64, "b": 0}, "a"),
        ({"a": 65, "b": 0}, "b"),
        ({"a": 195, "b": 130}, "a"),  # 65 more, but not more than 1.5 times as many
        ({"a": 197, "b": 130}, "b"),
    ],
)
def test_balance_comes_first_beyond_both_bounds(loads, chosen):
    rule = PrefixAffinity()
    rule.note(hints(1, session="s"), "a")
    assert rule.rank(hints(1, session="s"), loads)[0] == chosen


def test_a_session_stays_where_it_was():
    rule = PrefixAffinity()
    for replica in "ab":
        rule.note(hints(1, 2), replica)
    rule.note(hints(1, 2, session="s"), "b")
    assert rule.rank(hints(1, 2, session="s"), {"a": 0, "b": 5})[0] == "b"  # of equal prefixes
    assert rule.rank(hints(8, 9, session="s"), {"a": 0, "b": 5})[0] == "b"  # without a prefix
    assert rule.rank(hints(8, 9, session="t"), {"a": 0, "b": 5})[0] == "a"
    rule.note(hints(1, 2, 3), "a")
    assert rule.rank(hints(1, 2, 3, session="s"), {"a": 0, "b": 0})[0] == "a"  # a longer prefix is worth more


def test_a_replica_that_has_ended_is_not_chosen():
    rule = PrefixAffinity()
    rule.note(hints(1, 2, session="s"), "a")
    assert rule.rank(hints(1, 2, session="s"), {"b": 4, "c": 2}) == ["c", "b"]
    rule.forget("a")
    assert rule.n_blocks == {}
    assert rule.rank(hints(1, 2, session="s"), {"a": 1, "b": 0})[0] == "b"


def test_memory_is_bounded_and_ends_of_old_prompts_go_first():
    rule = PrefixAffinity(max_blocks=4, max_sessions=2)
    for number in range(5):
        rule.note(hints(0, 10 * number + 1, 10 * number + 2, session=f"s{number}"), "a")
    assert rule.n_blocks == {"a": 4}
    loads = {"a": 1, "b": 0}
    assert rule.rank(hints(0, 41, 42), loads)[0] == "a"
    assert rule.rank(hints(0, 31), loads)[0] == "a"
    assert rule.rank(hints(0, 1, 2, 3), loads)[0] == "b"  # a quarter is left of it
    assert rule.rank(hints(session="s0"), loads)[0] == "b"
    assert rule.rank(hints(session="s4"), loads)[0] == "a"


def test_equal_loads_spread_prompts():
    rule, loads = PrefixAffinity(), dict.fromkeys("abc", 0)
    chosen = []
    for number in range(3):
        chosen.append(rule.rank(hints(number, 100 + number), loads)[0])
        rule.note(hints(number, 100 + number), chosen[-1])
    assert sorted(chosen) == ["a", "b", "c"]


prompts = st.lists(st.integers(0, 2), max_size=6).map(
    lambda parts: tuple(hash(tuple(parts[: n + 1])) for n in range(len(parts)))
)
notes = st.lists(st.tuples(prompts, st.sampled_from("abcd")), max_size=20)


@given(notes, prompts, st.dictionaries(st.sampled_from("abcd"), st.integers(0, 200), min_size=1))
def test_the_first_replica_follows_from_the_definition(noted, prompt, loads):
    rule = PrefixAffinity()
    for blocks, replica in noted:
        rule.note(RouteHints(blocks, 1.0), replica)

    def n_shared(replica):
        known = {block for blocks, other in noted if other == replica for block in blocks}
        return next((place for place, block in enumerate(prompt) if block not in known), len(prompt))

    order = rule.rank(RouteHints(prompt, 1.0), loads)
    assert sorted(order) == sorted(loads)
    least, most, longest = min(loads.values()), max(loads.values()), max(map(n_shared, loads))
    shares = longest >= 0.3 * len(prompt) and longest > 0
    if (most - least > 64 and most > 1.5 * least) or not shares:
        assert loads[order[0]] == least
    else:
        assert n_shared(order[0]) == longest
        assert loads[order[0]] == min(loads[replica] for replica in loads if n_shared(replica) == longest)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"min_share": 1.5}, "min_share: must be 0 to 1, got 1.5"),
        ({"balance_ratio": 0.5}, "balance_ratio: must be at least 1, got 0.5"),
        ({"balance_absolute": float("nan")}, "balance_absolute: must be at least 0, got nan"),
        ({"max_blocks": 0}, "max_blocks: must be at least 1, got 0"),
    ],
)
def test_parameters_are_checked(given, words):
    with pytest.raises(RequestError, match=f"^{words}$"):
        PrefixAffinity(**given)


def test_blocks_depend_on_all_before_them():
    (first, second), coverage = blocks_of(b"abcdefgh--", 4)
    assert coverage == 0.8
    assert blocks_of(b"abcdefgX--", 4)[0][0] == first != second
    assert blocks_of(b"Xbcdefgh--", 4)[0][1] != second
    assert blocks_of(b"", 4) == ((), 0.0)
    assert blocks_of(b"abc", 4) == ((), 0.0)
