"""The draft model as a drafter: what it sees, what it remembers, and what it gives back."""

import logging
from dataclasses import replace

import drafts
import numpy as np
import pytest
from golden import load

from dflash.decode.drafters.ddtree import DDTree
from dflash.decode.drafters.dflash import DFlash, DSpark
from dflash.decode.drafting.diagnostics import warnings_of
from dflash.decode.drafting.drafter import Strategy
from dflash.decode.drafting.shapes import Chain, Tree
from dflash.decode.engine import Engine
from dflash.decode.session import Session
from dflash.decode.snapshot import SessionSnapshot
from dflash.errors import NotFound

NAME = "qwen35-r2-untied-F32"
PROMPT = np.random.default_rng(2).integers(0, 200, 90).tolist()


@pytest.fixture
def model():
    model = load(NAME, kv="f16")
    yield model
    for each in model.attachments.values():
        assert getattr(each, "free_slots", 12) == model.pools.slots == 12
    model.attachments.close()
    assert (model.pools.free_pages, model.pools.free_slots) == (model.pools.pages, model.pools.slots)


@pytest.fixture
def path(model, tmp_path, monkeypatch):
    return write(model, tmp_path, monkeypatch)


def write(model, folder, monkeypatch, *, edit=None, **changes):
    """A draft of random weights; all of its layers have windows."""
    n_vocab = model.config.n_vocab
    sizes = {"width": model.config.width, "n_vocab": n_vocab, "mask": 5, "target_layer_ids": (0, model.config.n_layers - 1)}
    made = replace(drafts.SMALL, **sizes, **changes)
    monkeypatch.setattr(drafts, "VOCAB", n_vocab)
    weights = drafts.random_weights(made, n_head=n_vocab)
    if edit is not None:
        edit(weights)
    return str(drafts.write_gguf(folder / f"draft{len(list(folder.iterdir()))}.gguf", made, weights))


def run(engine, *sessions):
    list(engine.run(sessions))
    for session in sessions:
        if session.error is not None:
            raise session.error
    return [[step.draft for step in session.steps if step.tokens] for session in sessions]


def session(path, prompt=PROMPT, shape=None, n=12, **settings):
    return Session(prompt, strategy=Strategy(DFlash(path), shape), max_tokens=n, **settings)


@pytest.mark.parametrize("chunk", [1, 7, 512])
def test_it_sees_the_text_however_it_is_read(model, path, chunk):
    (want,) = run(Engine(model, chunk=90), session(path))
    (found,) = run(Engine(model, chunk=chunk), session(path))
    assert found == want
    assert all(len(draft) for draft in found[:-2])


def test_a_draft_does_not_depend_on_the_batch(model, path):
    """Shapes of all kinds share one pass of the draft."""
    shapes = [None, Chain(2), Tree(9), Tree(30, width=2)]
    alone = [run(Engine(model), session(path, PROMPT[i:], shape))[0] for i, shape in enumerate(shapes)]
    together = run(Engine(model, chunk=13), *(session(path, PROMPT[i:], shape) for i, shape in enumerate(shapes)))
    for one, other in zip(alone, together, strict=True):
        assert one == other[: len(one)]


def test_what_a_long_prompt_would_push_out_is_not_read(model, tmp_path, monkeypatch):
    path = write(model, tmp_path, monkeypatch, windows=(20,) * 3)
    DFlash(path).prepare(model)
    draft = model.attachments[DFlash(path)]
    prompt, read = (PROMPT * 4)[:300], []
    old = draft.read_many

    def count(items, features):
        read.extend(len(range(512)[rows]) if isinstance(rows, slice) else len(rows) for _, rows in items)
        old(items, features)

    monkeypatch.setattr(draft, "read_many", count)
    (draft_tokens,) = run(Engine(model, chunk=64), session(path, prompt, n=3))
    assert draft.reach == 64
    assert 64 <= sum(read) <= 64 + 3
    (all_read,) = run(Engine(model, chunk=300), session(path, prompt, n=3))
    assert draft_tokens == all_read


def test_a_snapshot_of_the_prompt(model, path):
    """Drafts go on as if the text had been read by the same session."""
    engine = Engine(model, chunk=40)
    (want,) = run(engine, session(path))
    first = engine.add(session(path))
    engine.step()
    engine.step()
    snapshot = SessionSnapshot(first)
    first.cancel()
    engine.step()
    assert snapshot.length == 80
    assert run(engine, session(path, prefix=snapshot)) == [want]
    # who has seen nothing of the prefix drafts from what comes after it
    late = session(path, shape=Chain(3), prefix=snapshot.state)
    assert all(len(draft) for draft in run(engine, late)[0][:-2])
    snapshot.close()


def test_a_snapshot_that_can_not_be_restored_costs_no_slot(model, path, monkeypatch):
    """The fixture counts the slots of the draft model."""
    engine = Engine(model, chunk=40)
    first = engine.add(session(path))
    engine.step()
    engine.step()
    snapshot = SessionSnapshot(first)
    first.cancel()
    engine.step()
    state = model.attachments[first.drafter].state()
    state.close()

    def fail(*_):
        raise OSError("no memory")

    monkeypatch.setattr(type(state), "restore", fail)
    again = engine.add(session(path, prefix=snapshot))
    while engine.busy:
        engine.step()
    assert again.finish_reason == "error"
    snapshot.close()


def test_broken_weights_give_a_warning(model, tmp_path, monkeypatch, caplog):
    def spoil(weights):
        weights["output_norm.weight"][:] = np.nan

    path = write(model, tmp_path, monkeypatch, edit=spoil)
    one, two = session(path), session(path)
    plain = Session(PROMPT, max_tokens=12)
    run(Engine(model), one, two, plain)
    assert one.output_ids == two.output_ids == plain.output_ids
    assert one.warnings == two.warnings == warnings_of(model)
    assert "NaN" in one.warnings[0]
    assert sum(record.levelno == logging.WARNING for record in caplog.records) == 1


def test_as_a_value(model):
    assert DFlash("a.gguf") == DFlash(draft="a.gguf") != DFlash("a.gguf", context=9)
    assert DSpark("a.gguf", min_confidence=0.5) == DFlash("a.gguf", min_confidence=0.5)
    assert DDTree("a.gguf", 9, trim_block=True) == Strategy(DFlash("a.gguf", trim_block=True), Tree(9))
    assert DDTree(DFlash("a.gguf")) == Strategy(DFlash("a.gguf"), Tree(22))
    with pytest.raises(NotFound):
        DFlash("nowhere.gguf").prepare(model)
