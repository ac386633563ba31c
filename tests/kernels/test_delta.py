"""The gated delta rule: recorded results, the definition, and the same bits for any split of the sequence into passes."""

import itertools
from dataclasses import fields
from pathlib import Path

import numba
import numpy as np
import pytest
from batches import tree
from compare import assert_close, assert_same_bits
from recurrent import SLOTS, assert_guards, assert_untouched, batch, copy, guarded, path_to, poison, steps

from dflash.errors import KernelError
from dflash.kernels.arrays import zeros
from dflash.kernels.cases import BATCHES, Rows
from dflash.kernels.delta import DeltaMemory, apply_accepted, cpu, gated_delta, gates, reference
from dflash.kernels.delta.memory import GroupedDeltaMemory

DATA = Path(__file__).parent.parent / "data" / "kernels"
RECORDED = sorted(DATA.glob("gdr_*.npz"))
CASES = [case for case in reference.cases() if case[3] not in {48, 256}]
"""The smallest key size and those of models: each is a separate compilation on the CPU, which takes seconds."""
SHAPES = [(1, 1, 16, 32), (2, 6, 32, 16), (4, 12, 128, 128)]


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def tokens(n, n_groups, n_heads, width, n_values, seed=0):
    """Return the arguments up to the batch; decay factors range from nearly 0 to nearly 1."""
    y = random(n, 2 * n_groups * width + n_heads * n_values, seed=seed)
    alpha, beta = 4 * random(n, n_heads, seed=seed + 1), 2 * random(n, n_heads, seed=seed + 2)
    return y, alpha, beta, -np.exp(random(n_heads, seed=7)), random(n_heads, seed=8)


def pick(arguments, rows):
    return (*(np.ascontiguousarray(array[rows]) for array in arguments[:3]), *arguments[3:])


def random_memory(n_groups, n_heads, width, n_values):
    memory = DeltaMemory.empty(SLOTS, n_groups, n_heads, width, n_values)
    for seed, field in enumerate(fields(memory)):
        array = getattr(memory, field.name)
        array[:] = random(*array.shape, seed=seed + 20)
    memory.k[:] = reference.unit(memory.k)
    np.abs(np.tanh(memory.decay), out=memory.decay)
    return memory


def run(arguments, sequences, memory, parents=None):
    n_heads, n_values = memory.state.shape[1:3]
    out = np.full((len(arguments[0]), n_heads, n_values), np.nan, np.float32)
    gated_delta(*arguments, batch(sequences, parents=parents), memory, out=out)
    return out


def flush(sequences, memory):
    made = batch(sequences)
    apply_accepted(made.slot, made.accepted, made.n_accepted, made.buffer, memory)
    return memory


def recorded(path):
    """Return arguments, first state (V, K), outputs and last state of a file, with value heads in GGUF order."""
    g = dict(np.load(path))
    n_groups, n_heads = g["q"].shape[1], g["v"].shape[1]
    ratio = n_heads // n_groups
    order = [t % n_groups * ratio + t // n_groups for t in range(n_heads)]
    v, log_decay, beta, o = (g[name][:, order] for name in ("v", "g", "beta", "o"))
    y = np.concatenate([x.reshape(len(v), -1) for x in (g["q"], g["k"], v)], axis=1)
    with np.errstate(divide="ignore", over="ignore"):
        fade = -log_decay.astype(np.float64)
        alpha = np.where(fade > 30, fade, np.log(np.expm1(np.minimum(fade, 30))))
        strength = np.log(beta / (1 - beta.astype(np.float64)))
    alpha, strength = (np.clip(x, -1e4, 1e4).astype(np.float32, order="C") for x in (alpha, strength))
    state, last = (g[name][order].swapaxes(1, 2) if name in g else 0 for name in ("state0", "state"))
    return (y, alpha, strength, np.full(n_heads, -1, np.float32), np.zeros(n_heads, np.float32)), state, o, last


@pytest.mark.parametrize("path", RECORDED, ids=[path.stem for path in RECORDED])
def test_the_delta_rule_is_as_recorded(path):
    arguments, state, want, last = recorded(path)
    n, n_heads, width = want.shape
    memory = DeltaMemory.empty(1, (arguments[0].shape[1] // width - n_heads) // 2, n_heads, width, width)
    memory.state[0] = state
    pending = copy(memory)
    out = run(arguments, [Rows(n, "prefill")], memory)
    np.testing.assert_allclose(out, want, rtol=0, atol=1e-6)
    np.testing.assert_allclose(memory.state[0], last, rtol=0, atol=5e-6)
    got = [run(pick(arguments, [i]), [rows], pending) for i, rows in enumerate(steps(n))]
    assert_same_bits("steps", np.concatenate(got), out)
    flush([Rows(1, accepted=(0,), buffer=n % 2)], pending)
    assert_same_bits("state", pending.state, memory.state)


def test_gates_are_as_recorded():
    g = np.load(DATA / "gates.npz")
    n, n_heads = g["alpha"].shape
    for head in range(n_heads):
        table = np.full((3, n + -n % 16), np.nan, np.float32)
        gates.fill(g["alpha"], g["b"], head, g["ssm_a"][head], g["ssm_dt_bias"][head], 0, n, table)
        np.testing.assert_allclose(table[gates.LOG_DECAY, :n], g["g"][:, head], rtol=3e-6, atol=0)
        np.testing.assert_allclose(table[gates.BETA, :n], g["beta"][:, head], rtol=3e-6, atol=0)
        exact = np.exp(table[gates.LOG_DECAY, :n].astype(np.float64))
        np.testing.assert_allclose(table[gates.DECAY, :n], exact, rtol=2e-7, atol=1e-37)


def test_softplus_is_exact_to_a_few_ulp():
    u = np.concatenate([np.linspace(-80, 80, 4001), np.geomspace(1e-8, 1, 200), [0, 20, -20]]).astype(np.float32)
    table, nothing = np.empty((3, len(u) + -len(u) % 16), np.float32), np.zeros((len(u), 1), np.float32)
    gates.fill(u[:, None], nothing, 0, np.float32(-1), np.float32(0), 0, len(u), table)
    np.testing.assert_allclose(-table[gates.LOG_DECAY, : len(u)], np.logaddexp(0, u.astype(np.float64)), rtol=5e-7, atol=0)


def test_recorded_unit_rows():
    g = np.load(DATA / "l2norm.npz")
    out = np.full_like(g["x"], np.nan)
    lanes, x = (0,) * (out.shape[1] // 16), np.ascontiguousarray(g["x"])
    for row in range(len(x)):
        cpu.unit_row(lanes, x[row].ctypes.data, np.float32(1), out[row].ctypes.data)
    np.testing.assert_allclose(out, g["y"], rtol=2e-6, atol=0)


@pytest.mark.parametrize("case", CASES, ids=[name for name, *_ in CASES])
def test_the_delta_rule_equals_the_definition(case):
    name, *shape, sequences = case
    rows = batch(sequences)
    n = int(rows.row_starts[-1])
    arguments, memory = tokens(n, *shape), poison(random_memory(*shape), sequences)
    before, wanted = copy(memory), copy(memory)
    room, out = guarded(n, shape[1], shape[3])
    gated_delta(*arguments, rows, memory, out=out)
    want = np.empty(out.shape)
    reference.gated_delta(*arguments, rows, wanted, out=want)
    assert_close(name, out, want, 1e-6)
    for s, sequence in enumerate(sequences):
        assert_close("state", memory.state[sequence.slot], wanted.state[sequence.slot], 1e-6)
        if not rows.prefill[s]:
            own = 1 - sequence.buffer, sequence.slot, slice(sequence.n)
            assert_close("k", memory.k[own], wanted.k[own], 1e-6)
            assert_close("u", memory.u[own], wanted.u[own], 1e-6)
            assert_close("decay", memory.decay[own], wanted.decay[own], 1e-6)
    assert_guards(room)
    assert_untouched(memory, before, sequences)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_prompt_has_the_bits_of_single_tokens(shape):
    """A prompt gives the same bits at once, in chunks, as single committed tokens, and as accepted drafts of one token."""
    n, memory = 70, random_memory(*shape)
    arguments = tokens(n, *shape)
    pieces, single, pending = copy(memory), copy(memory), copy(memory)
    want = run(arguments, [Rows(n, "prefill")], memory)
    cuts = [0, 1, 3, 36, n]
    got = [run(pick(arguments, slice(a, b)), [Rows(b - a, "prefill")], pieces) for a, b in itertools.pairwise(cuts)]
    assert_same_bits("pieces", np.concatenate(got), want)
    for name, form, other in (("single", "prefill", single), ("pending", "chain", pending)):
        got = [run(pick(arguments, [i]), [rows], other) for i, rows in enumerate(steps(n, form))]
        assert_same_bits(name, np.concatenate(got), want)
    flush([Rows(1, accepted=(0,), buffer=n % 2)], pending)
    for other in (pieces, single, pending):
        assert_same_bits("state", other.state, memory.state)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_path_of_a_tree_equals_a_chain(shape):
    """Every path through a tree equals a chain; an accepted path leaves the state as if nothing else had been drafted."""
    n, memory = 40, random_memory(*shape)
    arguments, after = tokens(n, *shape), tokens(3, *shape, seed=5)
    parents, before = tree(np.random.default_rng(3), n), copy(memory)
    out = run(arguments, [Rows(n, "tree")], memory, [parents])
    for row in range(0, n, 3):
        path = path_to(parents, row)
        chained, kept, straight = copy(before), copy(memory), copy(before)
        assert_same_bits("path", out[path], run(pick(arguments, path), [Rows(len(path))], chained))
        assert_same_bits("u", memory.u[1, 0, path], chained.u[1, 0, : len(path)])
        following = run(after, [Rows(3, accepted=tuple(path), buffer=1)], kept)
        run(pick(arguments, path), [Rows(len(path), "prefill")], straight)
        assert_same_bits("after the path", following, run(after, [Rows(3)], straight))
        assert_same_bits("state", kept.state, straight.state)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_sequence_has_the_same_bits_in_every_batch(shape):
    sequences = BATCHES["everything"]
    rows = batch(sequences)
    arguments, memory = tokens(int(rows.row_starts[-1]), *shape), random_memory(*shape)
    alone, one = copy(memory), copy(memory)
    out = run(arguments, sequences, memory)
    for s, sequence in enumerate(sequences):
        own = slice(rows.row_starts[s], rows.row_starts[s + 1])
        got = run(pick(arguments, own), [sequence], alone, [rows.parent[own].tolist()])
        assert_same_bits(f"sequence {s}", got, out[own])
    numba.set_num_threads(1)
    try:
        assert_same_bits("one thread", run(arguments, sequences, one), out)
    finally:
        numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
    for other in (alone, one):
        for field in fields(memory):
            assert_same_bits(field.name, getattr(other, field.name), getattr(memory, field.name))


def test_value_heads_of_a_key_head_may_be_neighbours():
    """Heads in another order have the same bits, in the output, the state and what is pending."""
    shape = n_groups, n_heads, width, n_values = SHAPES[1]
    sequences = [Rows(9, "tree", accepted=(0, 1), slot=2), Rows(5, "prefill", slot=4, accepted=(3,))]
    turns = np.arange(n_heads).reshape(-1, n_groups).T.ravel()
    arguments, memory = tokens(14, *shape), random_memory(*shape)
    y, alpha, beta, rate, shift = arguments
    keys, values = y[:, : 2 * n_groups * width], y[:, 2 * n_groups * width :].reshape(14, n_heads, n_values)
    grouped = np.concatenate([keys, values[:, turns].reshape(14, -1)], axis=1), alpha[:, turns], beta[:, turns]
    grouped = (*map(np.ascontiguousarray, grouped), rate[turns], shift[turns])
    neighbours = GroupedDeltaMemory.empty(SLOTS, *shape)
    neighbours.state[:], neighbours.k[:] = memory.state[:, turns], memory.k
    neighbours.u[:], neighbours.decay[:] = memory.u[..., turns, :], memory.decay[..., turns]
    exact, want = copy(neighbours), np.empty((14, n_heads, n_values))
    out = run(grouped, sequences, neighbours)
    assert_same_bits("output", out, run(arguments, sequences, memory)[:, turns])
    for name, array in (("state", memory.state[:, turns]), ("k", memory.k), ("u", memory.u[..., turns, :])):
        assert_same_bits(name, getattr(neighbours, name), array)
    reference.gated_delta(*grouped, batch(sequences), exact, out=want)
    assert_close("definition", out, want, 1e-6)
    accepted = [Rows(1, slot=2, accepted=(0, 2), buffer=1)]
    assert_same_bits("accepted", flush(accepted, neighbours).state, flush(accepted, memory).state[:, turns])


def test_accepted_rows_are_applied_without_a_new_token():
    sequences = [Rows(1, slot=5, accepted=(3, 4)), Rows(1, slot=2), Rows(1, slot=0, accepted=(0, 1, 2, 9, 63), buffer=1)]
    memory = poison(random_memory(2, 6, 32, 48), sequences)
    before, wanted, made = copy(memory), copy(memory), batch(sequences)
    flush(sequences, memory)
    reference.apply_accepted(made.slot, made.accepted, made.n_accepted, made.buffer, wanted)
    for slot in (5, 2, 0):
        assert_close("state", memory.state[slot], wanted.state[slot], 1e-6)
    for name in ("k", "u", "decay"):
        assert_same_bits(name, getattr(memory, name), getattr(before, name))
    assert_untouched(memory, before, [rows._replace(form="prefill") for rows in sequences])


@pytest.mark.parametrize("strong", [False, True])
def test_tree_by_matrix_products(strong):
    """The form without a state per row agrees with the recurrence, in float64."""
    n, width, n_values = 40, 16, 24
    rng = np.random.default_rng(11)
    q, k = (reference.unit(rng.standard_normal((n, width))) for _ in range(2))
    v, beta, state = rng.standard_normal((n, n_values)), rng.random(n), rng.standard_normal((n_values, width))
    log_decay = -rng.exponential(20 if strong else 0.1, n)
    parents = tree(rng, n)
    u, o, log_gamma = reference.tree_wy(q, k, v, log_decay, beta, state, parents)
    states = {-1: state}
    for i, above in enumerate(parents):
        want_u, want_o, states[i] = reference.step(states[above], q[i], k[i], v[i], np.exp(log_decay[i]), beta[i])
        np.testing.assert_allclose(u[i], want_u, rtol=0, atol=1e-12)
        np.testing.assert_allclose(o[i], want_o, rtol=0, atol=1e-12)
        after = reference.state_after(path_to(parents, i), k, u, log_gamma, state)
        np.testing.assert_allclose(after, states[i], rtol=0, atol=1e-12)


@pytest.mark.parametrize("parents", [[-1, 0, 1, 2], [-1, 0, 0, 0], [-1, 0, 0, 1, 1, 2, 2], [-1, -1, 0, 1, -1, 3]], ids=str)
def test_plan_reuses_places(parents):
    n = len(parents)
    source, target = np.full(n, -9), np.full(n, -9)
    places = cpu.plan(np.array([99, *parents], np.int32), 1, n, source, target)
    held = {-1: -1}
    for i, above in enumerate(parents):
        assert held[source[i]] == above
        if target[i] >= 0:
            held[target[i]] = i
        else:
            assert i not in parents
    assert places == len(held) - 1
    assert places == (1 if parents == [-1, 0, 1, 2] else places)


def test_arrays_of_wrong_shape_are_refused():
    arguments, memory = tokens(65, 1, 2, 16, 16), DeltaMemory.empty(1, 1, 2, 16, 16)
    out = np.empty((65, 2, 16), np.float32)
    with pytest.raises(KernelError, match="65 pending rows"):
        gated_delta(*arguments, batch([Rows(65)]), memory, out=out)
    with pytest.raises(KernelError, match="alpha: wanted"):
        gated_delta(arguments[0], arguments[1].T, *arguments[2:], batch([Rows(65, "prefill")]), memory, out=out)
    with pytest.raises(KernelError, match="3 value heads are no multiple of 2 key heads"):
        DeltaMemory.empty(1, 2, 3, 16, 16)
    with pytest.raises(KernelError, match="key size 24"):
        DeltaMemory.empty(1, 1, 1, 24, 16)
    with pytest.raises(KernelError, match="u: wanted"):
        DeltaMemory(memory.state, memory.k, zeros(2, 1, 64, 2, 32), memory.decay)
