"""What must be the same bits: chunks, steps, trees, batches, snapshots; on the recorded random models."""

import numpy as np
import pytest
from compare import assert_same_bits
from golden import PRIMARY, chain, load, prefill, recorded, step

from dflash.errors import DFlashError, KernelError, PoolExhausted, RequestError
from dflash.model.batch import Span

MODELS = [*PRIMARY, "qwen35-r3-tied-k-IQ4_XS", "qwen3-dense-BF16"]


@pytest.fixture(params=MODELS)
def model(request):
    model = load(request.param, kv="f16")
    model.name = request.param
    before = model.pools.free_pages, model.pools.free_slots
    yield model
    assert (model.pools.free_pages, model.pools.free_slots) == before


def text(model, n, seed=0):
    tokens = recorded(model.name)["tokens"]
    return np.random.default_rng(seed).choice(tokens, n).astype(np.int32)


def everything(model, state):
    """All bits that a sequence stands for."""
    state._settle()
    whole = [array.copy() for array in model.pools.kept_by(state.slot)]
    for cache in (model.pools.k, model.pools.v):
        shape = (len(cache), -1, *cache.shape[3:])
        whole.append(cache[:, state.pages].reshape(shape)[:, : state.length].copy())
    return whole


def assert_same_state(name, model, a, b):
    for got, want in zip(everything(model, a), everything(model, b), strict=True):
        assert_same_bits(name, got, want)


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunks_are_one_prefill(model, chunk):
    tokens = text(model, 130)
    one, other = model.state(), model.state()
    want, _ = prefill(model, one, tokens)
    got, _ = prefill(model, other, tokens, chunk=chunk)
    assert_same_bits("logits", got, want)
    assert_same_state("state", model, other, one)
    one.close(), other.close()


def test_steps_are_a_prefill(model):
    tokens = text(model, 40)
    one, other = model.state(), model.state()
    want, _ = prefill(model, one, tokens)
    prefill(model, other, tokens[:20])
    for i in range(20, 40):
        assert_same_bits(f"token {i}", step(model, other, tokens[i : i + 1])[0], want[i])
        other.commit([0])
    assert_same_state("state", model, other, one)
    one.close(), other.close()


def test_sixteen_tokens_are_sixteen_steps(model):
    tokens = text(model, 40, seed=1)
    one, other = model.state(), model.state()
    for state in (one, other):
        prefill(model, state, tokens[:24])
    together = step(model, one, tokens[24:])
    one.commit(range(16))
    for i in range(16):
        assert_same_bits(f"token {i}", step(model, other, tokens[24 + i : 25 + i])[0], together[i])
        other.commit([0])
    assert_same_state("state", model, other, one)
    one.close(), other.close()


def test_a_tree_is_its_paths(model):
    """Every node has the logits of the chain that leads to it, and committing a path leaves what reading it leaves."""
    prompt, tokens = text(model, 30), text(model, 12, seed=2)
    parents = np.array([-1, 0, 0, 1, 1, 2, 3, 5, 5, 8, 8, 10], np.int32)
    state = model.state()
    prefill(model, state, prompt)
    snapshot = state.snapshot()
    tree = step(model, state, tokens, parents)
    paths = []
    for node in range(12):
        path = [node]
        while parents[path[0]] >= 0:
            path.insert(0, int(parents[path[0]]))
        paths.append(path)
    other = model.state()
    for path in paths:
        other.restore(snapshot)
        assert_same_bits(f"path {path}", step(model, other, tokens[path]), tree[path])
        other.commit(range(len(path)))
        state.restore(snapshot)
        step(model, state, tokens, parents)
        state.commit(path)
        assert_same_state(f"state after {path}", model, state, other)
    for each in (state, other, snapshot):
        each.close()


def test_company_changes_nothing(model):
    prompts = [text(model, n, seed=n) for n in (30, 1, 70, 9)]
    alone = []
    for prompt in prompts:
        state = model.state()
        logits, _ = prefill(model, state, prompt)
        alone.append((logits, step(model, state, [3, 5, 7]), state))
        state.commit([0, 1])
    states = [model.state() for _ in prompts]
    spans = [Span(s, p, chain(len(p)), whole=True) for s, p in zip(states, prompts, strict=True)]
    out = model.forward(spans)
    for i, (want, *_) in enumerate(alone):
        assert_same_bits(f"prompt {i}", out.of(i), want)
    mixed = [Span(s, np.array([3, 5, 7], np.int32), chain(3)) for s in states[:3]]
    mixed.append(Span(states[3], prompts[2], chain(70), whole=True, logits=False))
    out = model.forward(mixed)
    for i in range(3):
        assert_same_bits(f"step {i}", out.of(i), alone[i][1])
        states[i].commit([0, 1])
        assert_same_state(f"state {i}", model, states[i], alone[i][2])
    for state in [*states, *(a[2] for a in alone)]:
        state.close()


def test_what_is_not_committed_never_was(model):
    tokens = text(model, 50)
    one, other = model.state(), model.state()
    for state in (one, other):
        prefill(model, state, tokens[:30])
    step(model, one, tokens[5:21])
    one.commit([])
    step(model, one, tokens[:9])
    step(model, one, tokens[2:6])
    assert_same_bits("after rejected rows", step(model, one, tokens[30:34]), step(model, other, tokens[30:34]))
    for state in (one, other):
        state.commit([0, 1])
    assert_same_state("state", model, one, other)
    one.close(), other.close()


def test_restore_gives_back_every_bit(model):
    tokens = text(model, 300)
    state = model.state()
    prefill(model, state, tokens[:256])
    step(model, state, tokens[256:260])
    state.commit([0, 1, 2])
    snapshot = state.snapshot()
    before = everything(model, state)
    want = step(model, state, tokens[260:270])
    state.commit([0, 1])
    prefill(model, state, tokens)
    state.restore(snapshot)
    for got, was in zip(everything(model, state), before, strict=True):
        assert_same_bits("state", got, was)
    assert_same_bits("logits", step(model, state, tokens[260:270]), want)
    fresh = model.state()
    fresh.restore(snapshot)
    assert_same_bits("in another sequence", step(model, fresh, tokens[260:270]), want)
    for each in (state, fresh, snapshot):
        each.close()
        each.close()


def test_refuses_what_cannot_be(model):
    state = model.state()
    with pytest.raises(RequestError, match="not in the vocabulary"):
        step(model, state, [model.n_vocab])
    with pytest.raises(RequestError, match="not in the vocabulary: ids are 0"):
        step(model, state, [-1])
    with pytest.raises(RequestError, match="parent"):
        step(model, state, [1, 2], [-1, 1])
    with pytest.raises(KernelError, match="64 pending"):
        step(model, state, [1] * 65)
    with pytest.raises(PoolExhausted, match="pages"):
        state.reserve(10**9)
    with pytest.raises(RequestError, match="no layer"):
        model.forward([Span(state, np.array([1], np.int32), chain(1))], capture=(model.config.n_layers,))
    step(model, state, [1, 2, 3], [-1, 0, 0])
    with pytest.raises(DFlashError, match="no path"):
        state.commit([0, 1, 2])
    with pytest.raises(DFlashError, match="no path"):
        state.commit([1])
    state.commit([0, 2])
    with pytest.raises(DFlashError, match="no path"):
        state.commit([0])
    state.close()
    with pytest.raises(DFlashError, match="closed"):
        step(model, state, [1])


def test_slots_run_out(model):
    states = []
    with pytest.raises(PoolExhausted, match="sequences are in use"):
        while True:
            states.append(model.state())
    assert len(states) == model.pools.slots
    for state in states:
        state.close()
