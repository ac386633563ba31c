"""What is measured of a model: each once, in short pieces, and in bounded memory, whatever names requests think of."""

import pytest
from paced import FLAT, GOOD, STEEP, WEAK, Timed, written

from dflash.decode.drafters.adaptive.cost_model import Variant
from dflash.decode.drafters.adaptive.drafter import Adaptive
from dflash.decode.drafters.adaptive.measuring import measures_of
from dflash.decode.drafters.dflash import DFlash
from dflash.decode.drafters.first_of import FirstOf
from dflash.decode.drafters.mtp import MTP
from dflash.decode.drafters.prompt_lookup import PromptLookup
from dflash.decode.drafting.drafter import Strategy
from dflash.decode.drafting.shapes import Chain, Tree
from dflash.decode.engine import Engine
from dflash.decode.session import Session
from dflash.errors import DFlashError, Unsupported
from dflash.kernels.ragged import PENDING
from dflash.model.attachments import Recent


@pytest.fixture
def model(clock):
    return Timed(clock, STEEP)


def n_forwards(model, drafter):
    """Forwards that it takes to prepare a drafter."""
    before = len(model.forwards)
    drafter.prepare(model)
    return len(model.forwards) - before


def test_another_lookup_measures_nothing_anew(model):
    assert n_forwards(model, Adaptive(PromptLookup(n_draft=3))) > 0
    for most in range(4, 60):
        assert n_forwards(model, Adaptive(PromptLookup(n_draft=most))) == 0
        assert n_forwards(model, Adaptive(PromptLookup(n_draft=most), PromptLookup(n_draft=2))) == 0


@pytest.mark.parametrize("shaped", [Chain, Tree], ids=["chain", "tree"])
def test_sizes_are_measured_on_one_grid(model, shaped):
    counts = [n_forwards(model, Adaptive(Strategy(GOOD, shaped(n)))) for n in (*range(1, 64), 500, 9999)]
    assert sum(count > 0 for count in counts) <= 12
    assert n_forwards(model, Adaptive(PromptLookup())) <= 10
    assert n_forwards(model, Adaptive(Strategy(GOOD, shaped(8)), PromptLookup())) == 0
    assert n_forwards(model, Adaptive(Strategy(WEAK, shaped(8)))) > 0


def test_settings_of_what_takes_no_time_make_no_other_form(model):
    assert n_forwards(model, Adaptive(FirstOf(PromptLookup(), GOOD))) > 0
    for most in range(2, 30):
        assert n_forwards(model, Adaptive(FirstOf(PromptLookup(n_draft=most), GOOD))) == 0
        assert n_forwards(model, Adaptive(FirstOf(PromptLookup(n_draft=most), PromptLookup(min_ngram=3), GOOD))) == 0
    assert n_forwards(model, Adaptive(FirstOf(PromptLookup(), GOOD, WEAK))) > 0


@pytest.mark.parametrize("curve", [FLAT, STEEP], ids=["flat", "steep"])
def test_pieces_are_short_and_hold_nothing(clock, curve):
    model, sizes = Timed(clock, curve), []
    for part in Adaptive(GOOD, Strategy(WEAK, Tree(22)), PromptLookup()).prepare_in_parts(model):
        assert part is None
        assert model.leaked == (0, 0, 0)
        sizes.append([sum(n for n, _ in spans) for spans in model.forwards])
        model.forwards.clear()
    assert len(sizes) > 30
    # at most a prompt of one token, then what is measured
    assert max(map(len, sizes)) == 2
    assert all(piece[0] == 1 for piece in sizes if len(piece) == 2)
    assert max(map(max, filter(None, sizes))) == PENDING


def test_a_thousand_names_leave_little_behind(model):
    first = Adaptive(PromptLookup(n_draft=1), GOOD)
    first.prepare(model)
    measured = len(model.forwards)
    n_companions = len(model.attachments)
    for number in range(1000):
        Adaptive(PromptLookup(n_draft=2 + number), Strategy(GOOD, Chain(1 + number % 15))).prepare(model)
    measures = measures_of(model)
    assert len(model.attachments) == n_companions
    assert len(measures) == measures.capacity <= 64
    assert len(model.forwards) - measured < 12 * 12
    # one that was dropped is made again of what was measured
    assert not first.is_prepared(model)
    before = len(model.forwards)
    session = Session([1, 2], strategy=Strategy(first), max_tokens=20)
    for _ in Engine(model).stream(session):
        pass
    assert session.token_ids == written(1, 2)[:22]
    assert len(model.forwards) - before <= len(session.steps)


def test_a_choice_that_is_dropped_while_it_is_used_goes_on(model):
    strategies = [Strategy(Adaptive(PromptLookup(n_draft=most), GOOD)) for most in range(1, 100)]
    engine = Engine(model)
    session = engine.add(Session([1, 2], strategy=strategies[0], max_tokens=60))
    for strategy in strategies:
        strategy.drafter.prepare(model)
        engine.step()
    assert not strategies[0].drafter.is_prepared(model)
    other = engine.add(Session([3, 4], strategy=strategies[0], max_tokens=30))
    while engine.busy:
        engine.step()
    assert session.token_ids == written(1, 2)[:62]
    assert other.token_ids == written(3, 4)[:32]
    assert model.leaked == (0, 0, 0)


def test_no_name_asks_for_more_than_a_forward_verifies():
    assert Variant(Strategy(GOOD, Chain(9999)), 0).most == PENDING - 1
    assert Variant(Strategy(GOOD, Tree(9999)), 0).most == PENDING - 1
    assert Variant(Strategy(GOOD, Chain(5)), 0).most == 5


def test_memory_that_is_all_in_use_is_no_failure(clock):
    model = Timed(clock, STEEP)
    states = [model.state() for _ in range(model.pools.slots)]
    Adaptive(GOOD, PromptLookup()).prepare(model)
    for state in states:
        state.close()
    session = Session([1, 2], strategy=Strategy(Adaptive(GOOD, PromptLookup())), max_tokens=20)
    for _ in Engine(model).stream(session):
        pass
    assert session.token_ids == written(1, 2)[:22]


def test_a_part_that_is_refused(model, monkeypatch):
    def refuse(self, model):
        raise Unsupported("this model has none")

    class Refused(PromptLookup):
        def prepare(self, model):
            raise DFlashError("not here")

    with pytest.raises(DFlashError, match="not here"):
        Adaptive(Refused(), GOOD).prepare(model)
    monkeypatch.setattr(DFlash, "load", refuse)
    monkeypatch.setattr(MTP, "load", refuse)
    Adaptive().prepare(model)
    costs = measures_of(model).recall(("costs", Adaptive()))
    assert [type(option.drafter) for option in costs.options] == [PromptLookup]


def test_recent_entries_are_kept():
    recent = Recent(3)
    for key in "abc":
        recent.keep(key, key.upper())
    assert recent.recall("a") == "A"
    recent.keep("d", "D")
    assert list(recent) == ["c", "a", "d"]
    assert recent.recall("b") is None
    recent.keep("c", "again")
    assert (list(recent), recent.recall("c")) == (["a", "d", "c"], "again")
