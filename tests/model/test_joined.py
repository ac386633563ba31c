"""A forward of few rows, whose ops share launches, gives the bits of separate ops."""

import threading

import numpy as np
import pytest
from compare import assert_same_bits
from golden import FILES, load

from dflash.kernels.joined import MAX_ROWS
from dflash.kernels.joined import cpu as joined_kernels
from dflash.kernels.profile import profile
from dflash.kernels.ragged import PAGE
from dflash.model.batch import Span
from dflash.model.network.ops import AttendOp, ExpertsOp
from dflash.model.run import joined as few_rows

LAYER = 1  # captured


def forwards(model):
    """Logits, hidden states and one layer's outputs of chains, a tree and two sequences, each after accepted rows."""
    random, results = np.random.default_rng(5), []
    one, other = model.state(), model.state()

    def chain(state, n):
        return Span.chain(state, random.integers(0, model.n_vocab, n))

    def run(*spans, capture=()):
        out = model.forward(spans, capture=capture)
        results.extend(np.ravel(array).copy() for array in (out.logits, out.hidden, *out.captured.values()))

    prompt = random.integers(0, model.n_vocab, PAGE - 3).astype(np.int32)  # the next rows reach a second page
    model.forward([Span.chain(one, prompt, prefill=True, logits=False)])
    for n in (1, 1, 4, MAX_ROWS, 1):
        run(chain(one, n))
        one.commit(list(range((n + 1) // 2)))
    run(chain(one, 1), capture=(LAYER,))
    one.commit([0])
    run(Span(one, random.integers(0, model.n_vocab, 5).astype(np.int32), np.array([-1, 0, 0, 2, 1], np.int32)))
    one.commit([0, 2, 3])
    run(chain(one, 2), chain(other, 1), capture=(LAYER,))
    one.commit([0])
    other.commit([0])
    run(chain(one, 1), chain(other, 3))
    one.close()
    other.close()
    return np.concatenate(results)


@pytest.fixture
def launches(monkeypatch):
    """Number of launches so far, in a list."""
    count, run = [0], joined_kernels.run

    def counted(*args):
        count[0] += 1
        run(*args)

    monkeypatch.setattr(joined_kernels, "run", counted)
    return count


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(("kv", "threads", "divided"), [("f32", 1, False), ("f16", 2, False), ("f16", 2, True)])
def test_joined_ops_change_no_bit(name, kv, threads, divided, launches, monkeypatch):
    if divided:
        monkeypatch.setattr(few_rows, "DIVIDED", 0)
    model = load(name, kv=kv, threads=threads)
    together, n_launches = forwards(model), launches[0]
    assert n_launches > 0
    with profile() as ops:  # a profile needs the time of each op
        apart = forwards(model)
    assert launches[0] == n_launches and "norm" in ops
    assert_same_bits(name, together, apart)


@pytest.mark.parametrize("name", FILES)
def test_launches_may_be_joined_from_any_forward_on(name, launches, monkeypatch):
    """Their kernels may be compiled while a model already runs."""
    model = load(name)
    together, forward, n_launches, compiled = forwards(model), model.forward, launches[0], threading.Event()

    def alternating(*args, **settings):
        (compiled.clear if compiled.is_set() else compiled.set)()
        return forward(*args, **settings)

    monkeypatch.setattr(model, "compiled", compiled)
    monkeypatch.setattr(model, "forward", alternating)
    assert_same_bits(name, forwards(model), together)
    assert n_launches < launches[0] < 2 * n_launches


@pytest.mark.parametrize("name", FILES)
def test_a_dense_model_runs_in_one_launch(name, launches, monkeypatch):
    model = load(name)
    ops = [op for op, _ in model._run._steps]
    if model.config.layers or any(isinstance(op, ExpertsOp) for op in ops):
        pytest.skip("its layers have parts that run between launches")
    n_attention = sum(isinstance(op, AttendOp) for op in ops)
    state = model.state()
    for limit, wanted in ((few_rows.DIVIDED, 1), (0, 1 + n_attention)):
        monkeypatch.setattr(few_rows, "DIVIDED", limit)
        launches[0] = 0
        model.forward([Span.chain(state, [1])])
        state.commit([0])
        assert launches[0] == wanted
    state.close()
