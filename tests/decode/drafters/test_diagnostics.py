"""Drafts that can't be right are reported once."""

import logging
from types import SimpleNamespace

import pytest

from dflash.decode.drafters.diagnostics import DraftDiagnostics, warnings_of
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
