"""Laws of models that store few pending rows of a sequence: every bit is that of a model that stores 64.

A test file brings the fixture `load_with`, which loads one model with a number of pending rows, and imports all of this.
"""

import numpy as np
import pytest
from batches import tree
from compare import assert_same_bits
from golden import chain, host, prefill, step
from loop_laws import Chain, written
from model_laws import assert_same_state, everything
from oracles import Remembers

from dflash.decode.drafting.drafter import Strategy
from dflash.decode.sampling.params import Sampling
from dflash.errors import KernelError, RequestError
from dflash.model.batch import Span

N_STEPS, N_SEQUENCES = 14, 3


def program(model, most):
    """Results of steps with random chains and trees of up to `most` rows, of which some paths are accepted.

    Between them prompts of more rows, snapshots, and steps of one sequence alone.
    """
    random, found = np.random.default_rng(most), []
    tokens = random.integers(0, min(model.n_vocab, 200), (N_SEQUENCES, 1000), dtype=np.int32)
    states = [model.state() for _ in range(N_SEQUENCES)]
    at = [0] * N_SEQUENCES

    def take(i, n):
        at[i] += n
        return tokens[i, at[i] - n : at[i]]

    for i, state in enumerate(states):
        found.append(prefill(model, state, take(i, most + 3 + i))[0])
    for n_step in range(N_STEPS):
        alone = [int(random.integers(N_SEQUENCES))]
        chosen, spans = alone if n_step % 4 == 3 else range(N_SEQUENCES), []
        for i in chosen:
            n = most if random.random() < 0.3 else int(random.integers(1, most + 1))
            parents = tree(random, n) if n_step % 2 else chain(n)
            spans.append(Span(states[i], take(i, n), np.array(parents, np.int32)))
        found.append(host(model.forward(spans).logits))
        for span in spans:
            row = int(random.integers(-1, len(span.tokens)))
            path = []
            while row >= 0:
                path.insert(0, row)
                row = int(span.parents[row])
            span.state.commit(path)
        if n_step % 5 == 4:
            i = int(random.integers(N_SEQUENCES))
            snapshot = states[i].snapshot()
            found.append(host(model.forward([Span(states[i], take(i, most), chain(most))]).logits))
            states[i].restore(snapshot)
            snapshot.close()
        if n_step % 6 == 5:
            i = int(random.integers(N_SEQUENCES))
            found.append(prefill(model, states[i], take(i, 2 * most + 1))[0])
    for state in states:
        found += everything(model, state)
        state.close()
    return found


@pytest.mark.parametrize("pending", [1, 3, 16])
def test_every_bit_is_that_of_64_rows(load_with, pending):
    got, want = program(load_with(pending), pending), program(load_with(64), pending)
    assert len(got) == len(want)
    for i, pair in enumerate(zip(got, want, strict=True)):
        assert_same_bits(f"result {i}", *pair)


def test_a_chain_has_the_bits_of_steps_with_one_row(load_with):
    model, single, tokens = load_with(16), load_with(1), np.arange(2, 60, dtype=np.int32)
    one, other = model.state(), single.state()
    prefill(model, one, tokens[:20]), prefill(single, other, tokens[:20])
    for start in (20, 36):
        together = step(model, one, tokens[start : start + 16])
        for i in range(16):
            assert_same_bits(f"row {i}", step(single, other, tokens[start + i : start + i + 1])[0], together[i])
            other.commit([0])
        one.commit(range(16))
    for got, want in zip(everything(model, one), everything(single, other), strict=True):
        assert_same_bits("state", got, want)
    one.close(), other.close()


@pytest.mark.parametrize("pending", [1, 16])
def test_more_rows_are_refused(load_with, pending):
    """A refused forward changes nothing, also beside a sequence that would fit."""
    model, tokens = load_with(pending), np.arange(2, 40, dtype=np.int32)
    one, other = model.state(), model.state()
    for state in (one, other):
        prefill(model, state, tokens[:5])
        step(model, state, tokens[5 : 5 + pending])
        state.commit(range(pending))
    rows = Span(one, tokens[: pending + 1], chain(pending + 1))
    with pytest.raises(KernelError, match=f"{pending + 1} pending tokens of a sequence, at most {pending} fit; load"):
        model.forward([Span(other, tokens[:1], chain(1)), rows])
    assert_same_bits("logits", step(model, one, tokens[:1]), step(model, other, tokens[:1]))
    for state in (one, other):
        state.commit([0])
    assert_same_state("state", model, one, other)
    one.close(), other.close()


@pytest.mark.parametrize("kind", [Chain, Remembers])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.9, seed=3)], ids=["greedy", "sampled"])
def test_drafts_are_cut_and_change_nothing(load_with, sampling, kind):
    prompt = list(range(3, 30))
    model = load_with(16)
    plain = written(load_with(64), prompt, sampling)
    assert written(model, prompt, sampling).output_ids == plain.output_ids
    assert written(load_with(1), prompt, sampling).output_ids == plain.output_ids
    for size, most in ((5, 5), (60, 15)):
        drafted = written(model, prompt, sampling, strategy=Strategy(kind(tuple(plain.token_ids), size)))
        assert drafted.output_ids == plain.output_ids
        # a tree grows by two tokens at a time
        assert max(each.drafted for each in drafted.steps) == most - (kind is Remembers)


def test_a_strategy_without_a_row_is_refused(load_with):
    with pytest.raises(RequestError, match="pending=1, a row for the last token only; load it with one more"):
        written(load_with(1), [1, 2, 3], Sampling(), strategy=Strategy(Chain((1, 2, 3), 4)))


def pools_hold(model, pending):
    """Assert that the arrays of pending rows have the size of the setting."""
    for conv, delta in zip(model.pools.conv, model.pools.delta, strict=True):
        shapes = {array.shape[:3] for array in (conv.inputs, delta.k, delta.u, delta.decay)}
        assert shapes == {(2, model.pools.slots, pending)}


def test_memory_is_that_of_the_rows(load_with):
    for pending in (1, 16, 64):
        pools_hold(load_with(pending), pending)
