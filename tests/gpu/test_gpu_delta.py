"""The middle of a linear-attention layer on a GPU: the definition, and the same bits in a chain, in a tree and alone."""

import itertools

import numpy as np
import pytest
from batches import chain, tree
from compare import assert_close, assert_same_bits
from mixer import Memories, Mixer, parts
from recurrent import assert_untouched, batch, path_to, poison, steps

from dflash.kernels.cases import BATCHES, Rows
from dflash.kernels.conv.memory import ConvMemory
from dflash.kernels.delta import reference
from dflash.kernels.delta.memory import DeltaMemory
from dflash.kernels.delta.state_copies import StateCopies, StateCopy

cupy = pytest.importorskip("cupy")
cuda = pytest.importorskip("dflash.kernels.delta.cuda")

CASES = [case for case in reference.cases() if max(case[3:5]) <= 128]
SHAPES = [(2, 4, 32, 32), (16, 48, 128, 128)]
MODELS = {"27B": (16, 48, 128, 128), "35B-A3B": (16, 32, 128, 128), "0.8B": (16, 16, 128, 128)}
HALF = 3e-4
"""Rounding to half alone is 2e-4."""


def check(mixer, sequences, *, ratio=HALF, state_ratio=2e-6, **options):
    """Against the definition, with NaN wherever nothing should be read."""
    rows = batch(sequences)
    tokens, memories = mixer.tokens(int(rows.row_starts[-1])), mixer.memories()
    memories = Memories(*(poison(memory, sequences) for memory in memories))
    before, wanted = memories.copy(), memories.copy()
    out = mixer.gpu(tokens, sequences, memories, **options)
    want = mixer.definition(tokens, rows, wanted)
    assert_close("out", out, want, ratio)
    for s, sequence in enumerate(sequences):
        assert_close("state", memories.delta.state[sequence.slot], wanted.delta.state[sequence.slot], state_ratio)
        if not rows.prefill[s]:
            own = 1 - sequence.buffer, sequence.slot, slice(sequence.n)
            for name in ("k", "u", "decay"):
                assert_close(name, getattr(memories.delta, name)[own], getattr(wanted.delta, name)[own], 2e-6)
    assert_same_bits("tail", memories.conv.tail, wanted.conv.tail)
    assert_same_bits("inputs", memories.conv.inputs, wanted.conv.inputs)
    for memory, was in zip(memories, before, strict=True):
        assert_untouched(memory, was, sequences)


@pytest.mark.parametrize("case", CASES, ids=[name for name, *_ in CASES])
def test_reference(case):
    _, *shape, sequences = case
    pending, text = parts(sequences)
    if pending and sum(rows.n for rows in pending) <= 64:
        check(Mixer(*shape), pending)
    elif pending:
        for rows in pending:
            check(Mixer(*shape), [rows])
    if text:
        check(Mixer(*shape), text, ratio=2e-3, state_ratio=1e-3)


@pytest.mark.parametrize("n", [1, 2, 8, 16])
@pytest.mark.parametrize("name", MODELS)
def test_chains_of_models(name, n):
    check(Mixer(*MODELS[name]), [Rows(n, slot=2, accepted=tuple(range(n)))])


@pytest.mark.parametrize("n", [5, 16, 23, 64])
@pytest.mark.parametrize("name", MODELS)
def test_trees_of_models(name, n):
    check(Mixer(*MODELS[name]), [Rows(n, "tree", slot=1, accepted=(0, 3, 7), buffer=1)])


@pytest.mark.parametrize("name", MODELS)
def test_several_sequences(name):
    mixture = [
        Rows(13, "tree", slot=2, accepted=(0, 3)),
        Rows(2, accepted=(1,), buffer=1),
        Rows(16, slot=4, accepted=(0,)),
        Rows(1, slot=5),
    ]
    check(Mixer(*MODELS[name]), mixture, bucket=48)
    check(Mixer(*MODELS[name]), mixture, n_sequences=1)


@pytest.mark.parametrize(
    "options",
    [{"split": 4}, {"split": 8}, {"fused": False}, {"split": 8, "fused": False}, {"split": 4, "value_rows": 4}],
    ids=str,
)
def test_other_blocks(options):
    check(Mixer(*SHAPES[1]), [Rows(23, "tree", slot=2, accepted=(0, 3)), Rows(3, accepted=(1,), buffer=1)], **options)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_little_shared_memory(shape, monkeypatch):
    """Where the inputs of the rows have no room in a block, they are read from memory, and no bit is another."""
    mixer, sequences = Mixer(*shape), [Rows(32, "tree", slot=2, accepted=(0, 3)), Rows(3, accepted=(1,), buffer=1)]
    tokens, memories = mixer.tokens(35), mixer.memories()
    again = memories.copy()
    out = mixer.gpu(tokens, sequences, memories)
    asked = cuda.StepShape.shared_bytes
    monkeypatch.setattr(
        cuda.StepShape,
        "shared_bytes",
        lambda self, room, places, *, staged: asked(self, room, places, staged=staged) + (staged << 20),
    )
    assert_same_bits("out", mixer.gpu(tokens, sequences, again), out)
    for name in ("state", "k", "u", "decay"):
        assert_same_bits(name, getattr(again.delta, name), getattr(memories.delta, name))
    assert_same_bits("tail", again.conv.tail, memories.conv.tail)
    assert_same_bits("inputs", again.conv.inputs, memories.conv.inputs)


def test_blocks_of_a_head_change_nothing_without_the_norm():
    mixer, sequences = Mixer(*SHAPES[1]), [Rows(23, "tree", slot=2, accepted=(0, 3)), Rows(3, accepted=(1,), buffer=1)]
    tokens, memories = mixer.tokens(26), mixer.memories()
    for split in (4, 8):
        first, other = memories.copy(), memories.copy()
        out = mixer.gpu(tokens, sequences, first, fused=False)
        assert_same_bits("out", mixer.gpu(tokens, sequences, other, split=split, fused=False), out)
        assert_same_bits("u", other.delta.u, first.delta.u)
        assert_same_bits("state", other.delta.state, first.delta.state)


def test_layers_share_the_memory_before_the_norm():
    """Memory of the right shape is used, other memory is not, and no bit depends on it."""
    mixer, sequences = Mixer(*SHAPES[1]), [Rows(23, "tree", slot=2, accepted=(0, 3)), Rows(3, accepted=(1,), buffer=1)]
    tokens, memories = mixer.tokens(26), mixer.memories()
    out = mixer.gpu(tokens, sequences, memories.copy(), fused=False)
    for rows, used in ((26, True), (25, False)):
        read = cupy.full((rows, mixer.n_heads * mixer.n_values), np.nan, np.float32)
        assert_same_bits("out", mixer.gpu(tokens, sequences, memories.copy(), fused=False, read=read), out)
        assert bool(cupy.isnan(read).all()) != used
        assert bool(cupy.isfinite(read).all()) == used


def test_value_rows_change_nothing():
    mixer, sequences = Mixer(*SHAPES[1]), [Rows(23, "tree", slot=2, accepted=(0, 3)), Rows(3, accepted=(1,), buffer=1)]
    tokens, memories = mixer.tokens(26), mixer.memories()
    again = memories.copy()
    out = mixer.gpu(tokens, sequences, memories, value_rows=2)
    assert_same_bits("out", mixer.gpu(tokens, sequences, again, value_rows=4), out)
    assert_same_bits("u", again.delta.u, memories.delta.u)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_prompts_of_models(shape):
    text = [
        Rows(130, "prefill", accepted=(0, 2)),
        Rows(64, "prefill", slot=1, buffer=1),
        Rows(1, "prefill", slot=2),
        Rows(200, "prefill", slot=3),
    ]
    check(Mixer(*shape), text, ratio=2e-3, state_ratio=1e-3, lengths=[7, 0, 63, 640])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_chain(shape):
    """A chain gives the bits of single steps, each of which keeps the one before."""
    n, mixer = 19, Mixer(*shape)
    tokens, memories = mixer.tokens(n), mixer.memories()
    alone, pieces = memories.copy(), memories.copy()
    kept = tuple(range(5))
    out = mixer.gpu(tokens, [Rows(n, accepted=kept)], memories)
    got = []
    for i, rows in enumerate(steps(n)):
        rows = rows._replace(accepted=rows.accepted if i else kept)
        got.append(mixer.gpu(tokens[i : i + 1], [rows], alone))
    assert_same_bits("out", np.concatenate(got), out)
    sizes, got, before, at = [3, 1, 8, 7], [], kept, 0
    for i, size in enumerate(sizes):
        got.append(mixer.gpu(tokens[at : at + size], [Rows(size, accepted=before, buffer=i % 2)], pieces))
        before, at = tuple(range(size)), at + size
    assert_same_bits("pieces", np.concatenate(got), out)
    mixer.flush([Rows(1, accepted=tuple(range(n)), buffer=1)], memories)
    mixer.flush([Rows(1, accepted=(0,), buffer=n % 2)], alone)
    mixer.flush([Rows(1, accepted=before, buffer=len(sizes) % 2)], pieces)
    for other in (alone, pieces):
        assert_same_bits("state", other.delta.state, memories.delta.state)
        assert_same_bits("tail", other.conv.tail, memories.conv.tail)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("places", [0, 1, 3])
def test_tree(shape, places, monkeypatch):
    """Every path through a tree reads as a chain; the path that is kept, as if nothing else had been drafted."""
    monkeypatch.setattr(cuda, "_STATES_ASIDE", places)
    n, mixer = 40, Mixer(*shape)
    tokens, after, memories = mixer.tokens(n), mixer.tokens(3, seed=5), mixer.memories()
    parents, before = tree(np.random.default_rng(3), n), memories.copy()
    out = mixer.gpu(tokens, [Rows(n, "tree")], memories, parents=[parents])
    for row in (0, 7, 22, 31, 39):
        path = path_to(parents, row)
        chained = before.copy()
        assert_same_bits("path", out[path], mixer.gpu(tokens[path], [Rows(len(path))], chained))
        kept = memories.copy()
        following = mixer.gpu(after, [Rows(3, accepted=tuple(path), buffer=1)], kept)
        straight = mixer.gpu(after, [Rows(3, accepted=tuple(range(len(path))), buffer=1)], chained)
        assert_same_bits("after the path", following, straight)
        assert_same_bits("state", kept.delta.state, chained.delta.state)


def test_forests_and_brooms():
    mixer = Mixer(*SHAPES[0])
    shapes = [
        [-1, -1, 0, 1, -1, 3],
        [-1, *[0] * 30],
        [-1, *range(10), *[10] * 8, *range(11, 19)],
        [-1, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5],
    ]
    for parents in shapes:
        n = len(parents)
        tokens, memories = mixer.tokens(n), mixer.memories()
        before = memories.copy()
        out = mixer.gpu(tokens, [Rows(n, "tree")], memories, parents=[parents])
        for row in range(n):
            path = path_to(parents, row)
            assert_same_bits("path", out[path], mixer.gpu(tokens[path], [Rows(len(path))], before.copy()))


def test_more_sequences_of_one_row_than_a_sequence_has_rows():
    mixer, sequences = Mixer(*SHAPES[0]), [Rows(1, slot=s, accepted=(0,) * (s % 3 > 0)) for s in range(70)]
    tokens, memories = mixer.tokens(70), mixer.memories(slots=70)
    start, again = memories.copy(), memories.copy()
    out = mixer.gpu(tokens, sequences, memories, longest=1)
    assert_same_bits("with memory for more rows", mixer.gpu(tokens, sequences, again), out)
    for name in ("state", "k", "u", "decay"):
        assert_same_bits(name, getattr(again.delta, name), getattr(memories.delta, name))
    for s in range(0, 70, 23):
        assert_same_bits("alone", mixer.gpu(tokens[s : s + 1], [sequences[s]], start), out[s : s + 1])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_any_company(shape):
    """A sequence has the same bits beside others, in a larger bucket, and when blocks take one sequence after another."""
    mixer, sequences = Mixer(*shape), [rows for rows in BATCHES["everything"] if rows.form != "prefill" and rows.n < 64]
    sequences += [Rows(16, slot=5, accepted=(0, 1, 2), buffer=1), Rows(1, slot=3, accepted=(0, 1)), Rows(23, "tree", slot=6)]
    rows = batch(sequences)
    n = int(rows.row_starts[-1])
    tokens, memories = mixer.tokens(n), mixer.memories()
    start = memories.copy()
    out = mixer.gpu(tokens, sequences, memories)
    for options in ({"bucket": 64}, {"n_sequences": 1}, {"n_sequences": 2}, {}):
        again = start.copy()
        assert_same_bits(str(options), mixer.gpu(tokens, sequences, again, **options), out)
        assert_same_bits("state", again.delta.state, memories.delta.state)
        assert_same_bits("u", again.delta.u, memories.delta.u)
        assert_same_bits("tail", again.conv.tail, memories.conv.tail)
    alone = start.copy()
    for s, sequence in enumerate(sequences):
        own = slice(rows.row_starts[s], rows.row_starts[s + 1])
        assert_same_bits("alone", mixer.gpu(tokens[own], [sequence], alone, parents=[rows.parent[own].tolist()]), out[own])
    assert_same_bits("state", alone.delta.state, memories.delta.state)
    assert_same_bits("tail", alone.conv.tail, memories.conv.tail)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("length", [0, 37])
def test_prompt_in_pieces(shape, length):
    """Cuts at multiples of 64 positions change no bit, nor does company."""
    n, mixer = 300, Mixer(*shape)
    tokens, memories = mixer.tokens(n), mixer.memories()
    pieces, company = memories.copy(), memories.copy()
    kept = (0, 2, 3)
    out = mixer.gpu(tokens, [Rows(n, "prefill", accepted=kept)], memories, lengths=[length])
    cuts = [0, 64 - length, 256 - length, n]
    got = []
    for i, (a, b) in enumerate(itertools.pairwise(cuts)):
        rows = Rows(b - a, "prefill", accepted=() if i else kept)
        got.append(mixer.gpu(tokens[a:b], [rows], pieces, lengths=[length + a]))
    assert_same_bits("pieces", np.concatenate(got), out)
    others = [
        Rows(70, "prefill", slot=4, buffer=1),
        Rows(n, "prefill", accepted=kept),
        Rows(3, "prefill", slot=2, accepted=(5,)),
    ]
    more = mixer.tokens(73, seed=9)
    both = type(tokens)(*(np.concatenate([m[:70], t, m[70:]]) for t, m in zip(tokens, more, strict=True)))
    got = mixer.gpu(both, others, company, lengths=[3, length, 1])
    assert_same_bits("company", got[70 : 70 + n], out)
    for other in (pieces, company):
        assert_same_bits("state", other.delta.state[0], memories.delta.state[0])
        assert_same_bits("tail", other.conv.tail[0], memories.conv.tail[0])


def test_states_copied_inside_of_a_prompt_have_the_bits_of_a_prompt_that_ends_there():
    mixer, lengths = Mixer(*SHAPES[0]), [10, 0]
    sequences = [Rows(200, "prefill", accepted=(0, 2)), Rows(70, "prefill", slot=4, buffer=1)]
    tokens, memories = mixer.tokens(270), mixer.memories()
    copies, ends, layer = StateCopies(), [(0, 54), (0, 182), (1, 64)], 1
    tail, state = (memory.shape[1:] for memory in (memories.conv.tail, memories.delta.state))
    made = [
        StateCopy(n, lengths[s] + n, [cupy.full((3, *shape), np.nan, np.float32) for shape in (tail, state)])
        for s, n in ends
    ]
    copies.set([(s, one) for (s, _), one in zip(ends, made, strict=True)])
    whole = memories.copy()
    mixer.gpu(tokens, sequences, whole, lengths=lengths, copies=copies, layer=layer)
    for (s, n), one in zip(ends, made, strict=True):
        start, own = 200 * s, memories.copy()
        some = type(tokens)(*(array[start : start + n] for array in tokens))
        mixer.gpu(some, [sequences[s]._replace(n=n)], own, lengths=[lengths[s]])
        slot, (tails, states) = sequences[s].slot, one.arrays
        assert_same_bits("tail", tails[layer].get(), own.conv.tail[slot])
        assert_same_bits("state", states[layer].get(), own.delta.state[slot])
        assert all(cupy.isnan(array[[0, 2]]).all() for array in one.arrays), "another layer's copy is written"
    without = memories.copy()
    copies.set([])
    mixer.gpu(tokens, sequences, without, lengths=lengths, copies=copies, layer=layer)
    assert_same_bits("state", whole.delta.state, without.delta.state)
    assert_same_bits("tail", whole.conv.tail, without.conv.tail)


def test_prompt_then_steps():
    """Text read at once leaves nearly what single steps leave."""
    n, mixer = 150, Mixer(*SHAPES[1])
    tokens, memories = mixer.tokens(n), mixer.memories()
    pending = memories.copy()
    out = mixer.gpu(tokens, [Rows(n, "prefill")], memories, lengths=[11])
    got, kept = [], ()
    for i, a in enumerate(range(0, n, 50)):
        got.append(mixer.gpu(tokens[a : a + 50], [Rows(50, accepted=kept, buffer=i % 2)], pending))
        kept = tuple(range(50))
    mixer.flush([Rows(1, accepted=kept, buffer=1)], pending)
    assert_close("out", out, np.concatenate(got), 2e-3)
    assert_close("state", memories.delta.state[0], pending.delta.state[0], 1e-3)
    assert_same_bits("tail", memories.conv.tail[0], pending.conv.tail[0])


@pytest.mark.parametrize("fade", ["keeps", "forgets", "both"])
@pytest.mark.parametrize("n", [257])
def test_repetitive_text(fade, n):
    """Few different tokens, over and over: keys repeat, and errors would add up."""
    mixer = Mixer(4, 12, 128, 128)
    few, memories = mixer.tokens(3), mixer.memories()
    shift = {"keeps": -12, "forgets": 8, "both": 0}[fade]
    picks = np.random.default_rng(2).integers(0, 3, n) * (np.arange(n) % 7 < 5)
    tokens = few[picks]
    tokens.alpha[:] = tokens.alpha / 4 + shift
    wanted = memories.copy()
    out = mixer.gpu(tokens, [Rows(n, "prefill")], memories)
    want = mixer.definition(tokens, batch([Rows(n, "prefill")]), wanted)
    assert_close("out", out, want, 2e-3)
    assert_close("state", memories.delta.state[0], wanted.delta.state[0], 1e-3)


def test_flush():
    mixer = Mixer(*SHAPES[0])
    sequences = [Rows(1, slot=5, accepted=(3, 4)), Rows(1, slot=2), Rows(1, slot=0, accepted=(0, 1, 2, 9, 63), buffer=1)]
    memories = Memories(*(poison(memory, sequences) for memory in mixer.memories()))
    before, wanted, made = memories.copy(), memories.copy(), batch(sequences)
    mixer.flush(sequences, memories)
    reference.apply_accepted(made.slot, made.accepted, made.n_accepted, made.buffer, wanted.delta)
    for sequence in sequences:
        assert_close("state", memories.delta.state[sequence.slot], wanted.delta.state[sequence.slot], 1e-6)
    for name in ("k", "u", "decay"):
        assert_same_bits(name, getattr(memories.delta, name), getattr(before.delta, name))


def test_launch_in_a_graph():
    """A captured launch reads another batch, also of a tree and of more sequences."""
    from dflash.kernels.gpu import device
    from dflash.kernels.gpu.batch import DeviceBatch

    mixer = Mixer(*SHAPES[0])
    on_device = DeviceBatch(16, 4, 4)
    there = ConvMemory.empty(4, 4, mixer.n_channels, device.zeros), DeltaMemory.empty(4, *SHAPES[0], device.zeros)
    arrays = [cupy.zeros((16, array.shape[1]), np.float32) for array in mixer.tokens(1)]
    out = cupy.zeros((16, mixer.n_heads * mixer.n_values), np.float16)
    weights = cuda.MixerWeights(*(cupy.asarray(a) for a in (mixer.taps, mixer.ssm_a, mixer.ssm_dt, mixer.ssm_norm)), 1e-6)
    step = cuda.DeltaStep(cuda.Inputs(*arrays, out), weights, on_device, *there)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()
    plans = [
        [Rows(3), Rows(2, slot=1)],
        [Rows(9, "tree", accepted=(0, 1), buffer=1), Rows(1, slot=1, accepted=(0,), buffer=1)],
        [Rows(16, accepted=(0, 2))],
    ]
    memories = mixer.memories(slots=4)
    for memory in memories:
        for name in memory.__slots__:
            getattr(memory, name)[:] = 0
    with stream:
        step(16)
        stream.synchronize()
        stream.begin_capture()
        step(16)
        graph = stream.end_capture()
        for sequences in plans:
            rows = batch(sequences)
            n = int(rows.row_starts[-1])
            tokens = mixer.tokens(n, seed=n)
            for array, values in zip(arrays, tokens, strict=True):
                array[:n] = cupy.asarray(values)
            on_device.upload(np.zeros(n, np.int32), rows, stream)
            graph.launch(stream)
            stream.synchronize()
            assert_close("out", out[:n].get(), mixer.definition(tokens, rows, memories), HALF)


def test_scratch_in_given_memory():
    """Its arrays lie side by side there, or elsewhere if there is no room."""
    sizes, memory = (130, *SHAPES[0]), cupy.empty(1 << 22, np.float16)
    scratch = cuda.PromptScratch(*sizes, sequences=2, memory=memory)
    arrays = sorted((scratch.prepared, scratch.matrices, scratch.gates, scratch.read), key=lambda a: a.data.ptr)
    ends = [memory.data.ptr, *(a.data.ptr + a.nbytes for a in arrays)]
    assert all(end <= a.data.ptr for end, a in zip(ends, arrays, strict=False))
    assert ends[-1] <= memory.data.ptr + memory.nbytes
    elsewhere = cuda.PromptScratch(*sizes, sequences=2, memory=memory[:100]).prepared
    assert not memory.data.ptr <= elsewhere.data.ptr < memory.data.ptr + 200


def test_refused():
    from dflash.errors import KernelError
    from dflash.kernels.delta.cuda_arguments import constants

    with pytest.raises(KernelError, match="at most 128 on a GPU, got 16 and 144"):
        constants(ConvMemory.empty(1, 4, 176), DeltaMemory.empty(1, 1, 1, 16, 144))
    assert chain(2) == [-1, 0]
