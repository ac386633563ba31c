"""Drafts that can't be right are reported once."""

import logging
import re
from types import SimpleNamespace

import pytest

import dflash
from dflash.decode.drafting.diagnostics import DraftDiagnostics, warnings_of
from dflash.decode.session import Session


@pytest.fixture
def model():
    return SimpleNamespace(attachments={})


def health(model, name="Draft()"):
    session = Session([1])
    return session, DraftDiagnostics(session, model, name)


def test_drafts_that_are_never_accepted_are_reported_once(model, caplog):
    session, watch = health(model)
    for _ in range(63):
        watch.count_draft(4)
        watch.count_accepted(0)
    assert not session.warnings
    watch.count_draft(4)
    watch.count_accepted(0)
    assert session.warnings == warnings_of(model)
    (warning,) = session.warnings
    assert warning.startswith("Draft() had no draft token accepted in 64 steps in a row")
    for _ in range(200):
        watch.count_draft(4)
        watch.count_accepted(0)
    other, watch = health(model)
    for _ in range(64):
        watch.count_draft(1)
        watch.count_accepted(0)
    assert other.warnings == [warning] == warnings_of(model)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_right_now_and_then(model, caplog):
    session, watch = health(model)
    for i in range(300):
        watch.count_draft(4)
        watch.count_accepted(int(i % 60 == 0))
        watch.count_accepted(30)  # a chunk of a prompt is no draft
    assert not session.warnings
    assert not caplog.records


def test_nothing_is_likely(model):
    session, watch = health(model)
    watch.count_draft(0)
    watch.count_accepted(0)
    assert "NaN" in session.warnings[0]
    assert health(model)[0].warnings == []
    assert len(warnings_of(model)) == 1


WAYS = (
    "lookup:{}",
    "suffix:{}",
    "mtp:{}",
    "mtp-tree:{}",
    "dflash:{}",
    "ddtree:{}",
    "first(lookup, dflash:{})",
    "adaptive(mtp:{})",
)


@pytest.fixture(scope="module")
def small():
    """The demo with 12 rows of a sequence in a step: 11 draft tokens at most."""
    with dflash.load("demo", device="cpu", threads=1, context=512, pending=12) as lm:
        yield lm


@pytest.mark.parametrize("way", WAYS)
def test_a_number_that_is_cut_is_reported_once(small, way, caplog):
    """The demo's draft has blocks of 15."""
    prompt, known = "1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4,", small.info().get("warnings", [])
    for n in (1, 11, 12, 99, 99):
        generation = small.generate(prompt, max_tokens=24, strategy=way.format(n))
        assert max(step.drafted for step in generation.steps) <= (11 if "lookup, " in way else min(n, 11))
        cut = [re.search(r"at most (\d+) tokens here, not (\d+)$", warning).groups() for warning in generation.warnings]
        assert cut == ([("11", str(n))] if n > 11 else []), way
    assert small.info()["warnings"] == [*known, *(record.getMessage() for record in caplog.records)]
    assert len(set(small.info()["warnings"])) == len(small.info()["warnings"]) >= 2


def test_blocks_of_a_draft_model_limit_chains_only():
    """Its trees have several tokens for a position."""
    with dflash.load("demo", device="cpu", threads=1, context=512) as lm:
        for name, most in (("dflash:15", None), ("dflash:16", "15"), ("ddtree:16", None), ("ddtree:64", "63")):
            warnings = lm.generate("1, 2, 3,", max_tokens=4, strategy=name).warnings
            assert [re.search(r"at most (\d+)", each)[1] for each in warnings] == ([most] if most else [])
