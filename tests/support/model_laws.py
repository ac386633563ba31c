"""Laws of a model on every device: chunks, steps, trees, batches, snapshots; for small random models.

A test file brings the fixture `model` and imports all of this. On a CPU bits are equal everywhere; on a GPU they are between
pending rows and between prompts that are cut where they may be, and close between the two and in trees.
"""

import itertools

import numpy as np
import pytest
from compare import assert_close, assert_same_bits
from golden import PRIMARY, chain, host, prefill, recorded, step

from dflash.errors import DFlashError, KernelError, PoolExhausted, RequestError
from dflash.model.batch import Span

MODELS = [*PRIMARY, "qwen35-r3-tied-k-IQ4_XS", "qwen3-dense-BF16"]
CLOSE = 3e-3
"""RMS error over RMS between a row that was pending and the same row of a prompt or of a tree, on a GPU."""
CLOSE_4 = 3e-2
"""The same with a q4_0 cache, where a value that rounds to another step differs by an eighth of its block's largest."""


def text(model, n, seed=0):
    tokens = recorded(model.name)["tokens"]
    return np.random.default_rng(seed).choice(tokens, n).astype(np.int32)


def everything(model, state):
    """All bits that a sequence stands for."""
    state._flush_accepted()
    whole = [host(array) for array in model.pools.slot_views(state.slot)]
    for cache in itertools.chain(*model.pools.caches):
        rows = host(cache[:, np.array(state.pages)])
        whole.append(rows.reshape(len(rows), -1, *rows.shape[3:])[:, : state.length])
    return whole


def assert_same_state(name, model, a, b):
    for got, want in zip(everything(model, a), everything(model, b), strict=True):
        assert_same_bits(name, got, want)


def assert_alike(name, model, got, want):
    """The same bits on a CPU, nearly the same values on a GPU."""
    if model.device == "cpu":
        assert_same_bits(name, got, want)
    else:
        assert_close(name, got, want, CLOSE_4 if "q4_0" in model.pools.kv else CLOSE)


@pytest.mark.parametrize("cuts", [(1,), (2,), (1, 3, 4), (5,), (1, 2, 3, 4, 5)])
def test_a_prompt_may_be_cut(model, cuts):
    tokens = text(model, 5 * model.chunk_alignment + 10)
    one, other = model.state(), model.state()
    want, _ = prefill(model, one, tokens)
    got, at = [], 0
    for end in (*(cut * model.chunk_alignment for cut in cuts), len(tokens)):
        got.append(prefill(model, other, tokens[at:end])[0])
        at = end
    assert_same_bits("logits", np.concatenate(got), want)
    assert_same_state("state", model, other, one)
    one.close(), other.close()


def test_steps_are_a_prefill(model):
    tokens = text(model, 40)
    one, other = model.state(), model.state()
    want, _ = prefill(model, one, tokens)
    prefill(model, other, tokens[:20])
    for i in range(20, 40):
        assert_alike(f"token {i}", model, step(model, other, tokens[i : i + 1])[0], want[i])
        other.commit([0])
    if model.device == "cpu":
        assert_same_state("state", model, one, other)
    one.close(), other.close()


@pytest.mark.parametrize("n", [2, 16, 33, 64])
def test_rows_together_are_steps(model, n):
    tokens = text(model, 24 + n, seed=1)
    one, other = model.state(), model.state()
    for state in (one, other):
        prefill(model, state, tokens[:24])
    together = step(model, one, tokens[24:])
    one.commit(range(n))
    for i in range(n):
        assert_same_bits(f"token {i}", step(model, other, tokens[24 + i : 25 + i])[0], together[i])
        other.commit([0])
    assert_same_state("state", model, one, other)
    one.close(), other.close()


def test_a_tree_is_its_paths(model):
    """Every node has the logits of the chain that leads to it, and so has what comes after a path is kept."""
    prompt, tokens = text(model, 30), text(model, 12, seed=2)
    parents = np.array([-1, 0, 0, 1, 1, 2, 3, 5, 5, 8, 8, 10], np.int32)
    state, other = model.state(), model.state()
    prefill(model, state, prompt)
    snapshot = state.snapshot()
    for node in range(12):
        path = [node]
        while parents[path[0]] >= 0:
            path.insert(0, int(parents[path[0]]))
        state.restore(snapshot)
        tree = step(model, state, tokens, parents)
        state.commit(path)
        other.restore(snapshot)
        assert_alike(f"path {path}", model, step(model, other, tokens[path]), tree[path])
        other.commit(range(len(path)))
        after = [step(model, each, tokens[:3]) for each in (state, other)]
        assert_alike(f"after {path}", model, *after)
        if model.device == "cpu":
            state.commit([]), other.commit([])
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
    spans = [Span(s, p, chain(len(p)), prefill=True) for s, p in zip(states, prompts, strict=True)]
    logits, at = host(model.forward(spans).logits), 0
    for i, (want, *_) in enumerate(alone):
        assert_same_bits(f"prompt {i}", logits[at : at + len(want)], want)
        at += len(want)
    mixed = [Span(s, np.array([3, 5, 7], np.int32), chain(3)) for s in states[:3]]
    mixed.insert(1, Span(states[3], prompts[2], chain(70), prefill=True, logits=False))
    out = model.forward(mixed, capture=(1,))
    logits, hidden, captured = host(out.logits), host(out.hidden), host(out.captured[1])
    assert np.isfinite(hidden).all()
    assert np.isfinite(captured).all()
    assert hidden.shape == captured.shape == (79, model.config.width)
    for i in range(3):
        assert_same_bits(f"step {i}", logits[3 * i : 3 * i + 3], alone[i][1])
        states[i].commit([0, 1])
        assert_same_state(f"state {i}", model, states[i], alone[i][2])
    for state in [*states, *(a[2] for a in alone)]:
        state.close()


def test_more_rows_than_a_pass(model):
    """Pending rows that may take several passes have the bits that they have alone."""
    prompt, tokens = text(model, 40), text(model, 40, seed=3)
    states = [model.state() for _ in range(5)]
    for state in states:
        prefill(model, state, prompt, logits=False)
    together = host(model.forward([Span(s, tokens[i : i + 30], chain(30)) for i, s in enumerate(states)]).logits)
    for i, state in enumerate(states):
        state.commit([])
        assert_same_bits(f"sequence {i}", step(model, state, tokens[i : i + 30]), together[30 * i : 30 * i + 30])
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


def test_a_copy_on_the_host_goes_on_with_every_bit(model):
    """With accepted rows that no forward has applied yet, and after other sequences have used slot and pages."""
    tokens = text(model, 300)
    one, other = model.state(), model.state()
    for state in (one, other):
        prefill(model, state, tokens[:250])
        step(model, state, tokens[250:260])
        state.commit(range(8))
    arrays = one.host_arrays()
    one.close()
    used = model.state()
    prefill(model, used, tokens[20:290])
    moved, sharing = model.state(), model.state()
    moved.restore_from_host(arrays)
    sharing.restore_from_host(arrays, moved.pages[:1])
    assert sharing.pages[0] == moved.pages[0]
    want = step(model, other, tokens[258:270])
    other.commit([0, 1])
    for state in (moved, sharing):
        assert state.length == 258
        assert_same_bits("logits", step(model, state, tokens[258:270]), want)
        state.commit([0, 1])
        assert_same_state("state", model, state, other)
    for state in (used, moved, sharing, other):
        state.close()


def test_two_runs_give_the_same_bits(model):
    tokens, results = text(model, 200), []
    for _ in range(2):
        state = model.state()
        logits, _ = prefill(model, state, tokens)
        results.append((logits, step(model, state, tokens[:17])))
        state.close()
    for got, want in zip(*results, strict=True):
        assert_same_bits("run", got, want)


def test_refuses_what_cannot_be(model):
    state = model.state()
    for token in (model.n_vocab, -1):
        with pytest.raises(RequestError, match="not in the vocabulary: ids are 0"):
            step(model, state, [token])
    with pytest.raises(RequestError, match="parent"):
        step(model, state, [1, 2], [-1, 1])
    with pytest.raises(KernelError, match="64"):
        step(model, state, [1] * 65)
    with pytest.raises(KernelError, match="at most 1024"):
        prefill(model, state, [1] * 1030, chunk=1030)
    with pytest.raises(PoolExhausted, match="pages"):
        state.reserve(10**9)
    with pytest.raises(RequestError, match="no layer"):
        model.forward([Span(state, np.array([1], np.int32), chain(1))], capture=(model.config.n_layers,))
    step(model, state, [1, 2, 3], [-1, 0, 0])
    for path in ([0, 1, 2], [1]):
        with pytest.raises(DFlashError, match="not a path"):
            state.commit(path)
    state.commit([0, 2])
    with pytest.raises(DFlashError, match="not a path"):
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
