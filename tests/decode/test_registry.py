"""Names of strategies, and what they print as."""

import re

import pytest
from python_run import run_python

import dflash
from dflash import (
    MTP,
    Adaptive,
    Chain,
    DDTree,
    DFlash,
    DraftModel,
    DSpark,
    FirstOf,
    LoopGuard,
    Plain,
    PromptLookup,
    Strategy,
    Tree,
)
from dflash.decode.drafting.drafter import Drafter
from dflash.decode.registry import DRAFTERS, name, names, register, words, words_of
from dflash.errors import RequestError

strategy = Strategy.named

NAMED = {
    "plain": Plain(),
    "dflash": Strategy(DFlash()),
    "dflash:8": Strategy(DFlash(), Chain(8)),
    "ddtree:22": DDTree(),
    "ddtree:32": Strategy(DFlash(), Tree(32)),
    "mtp": Strategy(MTP()),
    "mtp:3": Strategy(MTP(), Chain(3)),
    "mtp-tree:8": Strategy(MTP(), Tree(8)),
    "lookup": Strategy(PromptLookup()),
    "lookup:4": Strategy(PromptLookup(n_draft=4)),
    "adaptive": Strategy(Adaptive()),
    "adaptive(dflash:6, ddtree:32, mtp)": Strategy(Adaptive(Strategy(DFlash(), Chain(6)), DDTree(budget=32), MTP())),
    "first(lookup, dflash:8)": Strategy(FirstOf(PromptLookup(), Strategy(DFlash(), Chain(8)))),
    "first(lookup:16, dflash:8, mtp:3)": Strategy(FirstOf(PromptLookup(n_draft=16), "dflash:8", "mtp:3")),
    "first(lookup, ddtree:22)": Strategy(FirstOf(PromptLookup(), DFlash()), Tree(22)),
    "adaptive(first(lookup, mtp:2), dflash)": Strategy(Adaptive(FirstOf(PromptLookup(), "mtp:2"), DFlash())),
}


@pytest.mark.parametrize("text", NAMED)
def test_there_and_back(text):
    assert strategy(text) == NAMED[text]
    assert name(NAMED[text]) == text
    assert strategy(f"  {text.replace(', ', ',')} ") == NAMED[text]


def test_a_name_stands_wherever_a_strategy_does():
    assert Strategy.of("ddtree:32") == NAMED["ddtree:32"]
    assert Strategy("ddtree:32") == NAMED["ddtree:32"]
    assert Strategy("lookup", Chain(3)) == Strategy(PromptLookup(), Chain(3))
    assert Strategy("mtp:3") | LoopGuard() == NAMED["mtp:3"] | LoopGuard()
    assert FirstOf("lookup", MTP()) == FirstOf(PromptLookup(), MTP())
    assert Adaptive("dflash:6", "ddtree:32", MTP()) == NAMED["adaptive(dflash:6, ddtree:32, mtp)"].drafter
    for put in (Strategy.of, Strategy, FirstOf, Adaptive):
        with pytest.raises(RequestError, match=r"^strategy: 'fast' is not known; there are plain, dflash"):
            put("fast")
    with pytest.raises(RequestError, match="'mtp:3': has a shape of its own, Chain"):
        Strategy("mtp:3", Tree(8))
    for more in ("mtp-tree:3", DDTree(), MTP() | LoopGuard()):
        with pytest.raises(RequestError, match=r"FirstOf: .* is more than a drafter"):
            FirstOf("lookup", more)


@pytest.mark.parametrize(
    ("drafter", "shape", "message"),
    [
        (None, None, "strategy: wanted a name, a Strategy or a drafter, got None"),
        (MTP, None, "strategy: wanted a name, a Strategy or a drafter, got <class"),
        (MTP(), 3, "strategy: wanted a shape, as Chain(3) or Tree(22), got 3"),
        ("mtp", "tree", "strategy: wanted a shape, as Chain(3) or Tree(22), got 'tree'"),
        (MTP(), Chain, "strategy: wanted a shape, as Chain(3) or Tree(22), got <class"),
    ],
)
def test_what_a_strategy_is_not_made_of(drafter, shape, message):
    with pytest.raises(RequestError, match=f"^{re.escape(message)}"):
        Strategy(drafter, shape)


def test_names_list_every_word():
    assert words_of(" first(lookup:4,  mtp-tree:8,adaptive(dflash)) ") == [
        "first",
        "lookup",
        "mtp-tree",
        "adaptive",
        "dflash",
    ]
    assert {word for text in NAMED for word in words_of(text)} < set(words())
    assert set(words()) == set(re.findall("[a-z][a-z0-9-]*", names()))


def test_draft_options_reach_the_drafters_of_a_name():
    assert strategy("dflash:4", "d.gguf") == Strategy(DFlash("d.gguf"), Chain(4))
    assert strategy("dspark", "d.gguf") == Strategy(DSpark("d.gguf"))
    assert strategy("ddtree", "d.gguf") == DDTree("d.gguf")
    assert strategy("draft-model:2", "s.gguf") == Strategy(DraftModel("s.gguf"), Chain(2))
    assert strategy("mtp", "head.gguf") == Strategy(MTP("head.gguf"))
    assert strategy("first(mtp, dflash)", "d.gguf") == Strategy(FirstOf(MTP(), DFlash("d.gguf")))
    beside = {"draft_device": "cpu"}
    assert strategy("ddtree:9", "d.gguf", **beside) == DDTree("d.gguf", budget=9, draft_device="cpu")
    assert strategy("first(lookup, dflash)", **beside).drafter.drafters[1] == DFlash(draft_device="cpu")
    assert strategy("draft-model", "s.gguf", **beside) == Strategy(DraftModel("s.gguf", "cpu"))
    assert strategy("adaptive", **beside) == Strategy(Adaptive(DFlash(draft_device="cpu"), PromptLookup()))
    assert strategy("lookup", **beside) == Strategy(PromptLookup())
    few = {"draft_vocab": 4096}
    assert strategy("ddtree:9", "d.gguf", **few) == DDTree("d.gguf", budget=9, draft_vocab=4096)
    assert repr(strategy("dflash", **few)) == "Strategy(DFlash(draft_vocab=4096))"
    assert strategy("mtp-tree:9", **few) == Strategy(MTP(draft_vocab=4096), Tree(9))
    assert strategy("first(mtp, dflash)", "d.gguf", **few) == Strategy(
        FirstOf(MTP(draft_vocab=4096), DFlash("d.gguf", draft_vocab=4096))
    )
    assert strategy("adaptive", "d.gguf") == Strategy(Adaptive(DFlash("d.gguf"), PromptLookup()))


@pytest.mark.parametrize("text", ["", "fast", "fast:3", "Plain", "first(lookup, fast)"])
def test_what_is_not_known(text):
    with pytest.raises(RequestError, match="is not known; there are plain, dflash"):
        strategy(text)


@pytest.mark.parametrize(
    ("text", "part", "meant"),
    [
        ("plain:3", "plain:3", "plain"),
        ("plain,plain", "plain,plain", "plain"),
        ("mtp:0", "mtp:0", "mtp[:DEPTH], DEPTH from 1 to 9999"),
        ("mtp(2)", "mtp(2)", "mtp[:DEPTH], DEPTH from 1 to 9999"),
        ("dflash:", "dflash:", "dflash[:DEPTH], DEPTH from 1 to 9999"),
        ("dflash:10000", "dflash:10000", "dflash[:DEPTH], DEPTH from 1 to 9999"),
        ("ddtree:-1", "ddtree:-1", "ddtree[:NODES], NODES from 1 to 9999"),
        ("mtp-tree:1.5", "mtp-tree:1.5", "mtp-tree[:NODES], NODES from 1 to 9999"),
        ("lookup:abc", "lookup:abc", "lookup[:TOKENS], TOKENS from 1 to 9999"),
        ("first(dflash:0, lookup)", "dflash:0", "dflash[:DEPTH], DEPTH from 1 to 9999"),
        ("adaptive(plain:2, mtp)", "plain:2", "plain"),
        ("adaptive:2", "adaptive:2", "adaptive or adaptive(A, B, ...)"),
        ("first", "first", "first(A, B, ...)"),
        ("first()", "first()", "first(A, B, ...)"),
        ("first(lookup", "first(lookup", "first(A, B, ...)"),
        ("first:2(mtp)", "first:2(mtp)", "first(A, B, ...)"),
    ],
)
def test_how_what_was_meant_is_written(text, part, meant):
    with pytest.raises(RequestError, match=re.escape(f"strategy: '{part}' is not known; wanted {meant}") + "$"):
        strategy(text)


def test_what_does_not_go_together():
    with pytest.raises(RequestError, match="draft-model needs a draft"):
        strategy("draft-model")
    with pytest.raises(RequestError, match="drafts in chains or in one shape"):
        strategy("first(dflash:3, mtp-tree:4)")
    nested = FirstOf("lookup", FirstOf("suffix", "mtp:2"))
    for parts in (
        ("mtp:3", "mtp:2"),
        ("lookup", MTP(), "mtp:2"),
        (nested, "mtp:2"),
        ("mtp", nested),
        ("first(mtp:2)", nested),
    ):
        with pytest.raises(RequestError, match=r"FirstOf: names MTP\(\) twice, of which the second would never draft"):
            FirstOf(*parts)
    for shape in (Chain(3), Tree(9)):
        both = Strategy(FirstOf(PromptLookup(), "mtp:3"), shape)
        assert name(both) == repr(both), "no name has a shape around parts with their own"


@pytest.mark.parametrize(
    "value",
    [
        *NAMED.values(),
        Strategy(DFlash("d.gguf", draft_device="cpu", trim_block=True), Tree(9, depth=4, width=2)) | LoopGuard(),
        Strategy(PromptLookup(max_ngram=5, min_ngram=3), Chain(7)),
        Strategy(DraftModel("s.gguf")),
        Strategy(MTP("head.gguf"), Tree(4)),
    ],
    ids=repr,
)
def test_prints_as_the_python_that_makes_it(value):
    assert eval(repr(value), vars(dflash) | {name: getattr(dflash, name) for name in dflash.__all__}) == value


def test_prints_no_more_than_needed():
    assert repr(DDTree("d.gguf")) == "Strategy(DFlash('d.gguf'), shape=Tree(22))"
    assert repr(Strategy(DFlash())) == "Strategy(DFlash())"
    assert name(Strategy(PromptLookup(min_ngram=4))) == repr(Strategy(PromptLookup(min_ngram=4)))


@pytest.fixture
def table(monkeypatch):
    monkeypatch.setattr(DRAFTERS, "_entries", dict(DRAFTERS))


def test_a_drafter_in_one_file_has_a_name(table):
    @register("ending", number="TOKENS", parameter="n_draft")
    class Suffix(Drafter):
        def __init__(self, n_draft=4):
            self.n_draft = n_draft

        def start(self, session, model, snapshot=None):
            raise NotImplementedError

        def __eq__(self, other):
            return isinstance(other, Suffix) and self.n_draft == other.n_draft

        def __hash__(self):
            return hash(self.n_draft)

    assert words()[-1] == "ending"
    assert names().endswith(", ending[:TOKENS]")
    assert Strategy("ending:9") == Strategy(Suffix(9))
    assert [name(Strategy(Suffix(n))) for n in (4, 9)] == ["ending", "ending:9"]
    assert FirstOf("ending", "mtp").drafters == (Suffix(), MTP())
    with pytest.raises(RequestError, match=r"wanted ending\[:TOKENS\], TOKENS from 1 to 9999"):
        strategy("ending:0")


def test_a_name_belongs_to_one_class(table):
    for word in ("mtp", "first"):
        with pytest.raises(ValueError, match=f"register: '{word}' is the name of .*; choose another"):
            register(word)(PromptLookup)
    with pytest.raises(ValueError, match="'My Drafter' must consist of lower-case letters, digits and hyphens"):
        register("My Drafter")(PromptLookup)
    assert register("lookup", number="TOKENS", parameter="n_draft")(PromptLookup) is PromptLookup, "a cell that runs again"


@pytest.mark.parametrize("module", ["dflash", "dflash.decode.drafters", "dflash.decode.drafters.first_of", "dflash.lm"])
def test_all_names_are_there_after_any_public_import(module):
    code = f"import {module}, dflash; dflash.Strategy; from dflash.decode.registry import words; print(*words())"
    assert run_python("-c", code).stdout.split() == list(words())
