"""What a model takes on the device beside weights and texts is what is said before it is loaded, and no more."""

import gc
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
from compare import assert_same_bits

import dflash
import dflash.model.loading.settings as load_settings
from dflash.kernels.gpu.capabilities import capabilities
from dflash.model.config import Config
from dflash.model.gguf.file import GGUFFile
from dflash.model.loading.hub import resolve
from dflash.model.state.budget import unpacked_size

cupy = pytest.importorskip("cupy")
ScratchArena = pytest.importorskip("dflash.model.cuda.scratch_arena").ScratchArena
load = pytest.importorskip("dflash.model.cuda.load")
pool_backend = pytest.importorskip("dflash.model.cuda.pool_backend")
Gather = pytest.importorskip("dflash.model.cuda.gather_outputs").Gather
work_bytes = load.work_bytes

MIB = 1 << 20


def held(pools):
    """Bytes of pages and recurrent memories."""
    arrays = [pools.k, pools.v]
    for memory in (*pools.conv, *pools.delta):
        arrays += [getattr(memory, name) for name in memory.__slots__]
    return sum(array.nbytes for array in arrays)


def test_what_is_beside_weights_and_texts():
    """Logits of 64 rows and the sums of attention, 20 MiB here, lie in memory of prompts."""
    gc.collect()
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    before = pool.used_bytes()
    with dflash.load("demo", device="cuda", context=4096) as lm:
        model = lm.model
        assert pool.free_bytes() < MIB, "what only loading took was handed back"
        lm.generate(list(range(100, 3500)), max_tokens=8)
        beside = pool.used_bytes() - before - model.weights.n_bytes - held(model.pools) - model.unpacked_bytes
        assert beside < work_bytes(model.config, model.pools.kv, chunk=model.prefill_chunk) + 2 * MIB


@pytest.mark.parametrize("prefill", load_settings.PREFILL_TYPES)
def test_weights_that_stay_unpacked_change_memory_and_no_bit(prefill):
    """All, some and none of them."""
    if prefill == "int8" and not capabilities().has_wgmma:
        pytest.skip("neither a Hopper GPU nor its target")
    pool = cupy.get_default_memory_pool()

    def loaded(limit):
        """Logits, and bytes beside weights and texts, of which some are for unpacked weights, all of which take the last."""
        gc.collect()
        before = pool.used_bytes()
        with dflash.load("demo", device="cuda", context=4096, prefill=prefill, unpacked_bytes=limit) as lm:
            logits, model = lm.logits(list(range(100, 230))), lm.model
            beside = pool.used_bytes() - before - model.weights.n_bytes - held(model.pools)
            return logits, beside, model.unpacked_bytes, unpacked_size(model.config, model_tensors())

    (all_, beside_all, kept, size), (some, beside_some, limit, _), (none, beside_none, *_) = map(loaded, (None, 12 * MIB, 0))
    assert_same_bits("some", some, all_)
    assert_same_bits("none", none, all_)
    assert limit == 12 * MIB < kept == size
    assert beside_none + 6 * MIB < beside_some <= beside_none + 12 * MIB
    assert beside_none + size - MIB < beside_all < beside_none + size + MIB


def test_copies_of_states_leave_memory_to_passes(monkeypatch):
    """While little is free the prefix cache saves nothing, and answers are the same."""
    ids = list(range(100, 500))
    with dflash.load("demo", device="cuda", context=4096, prefix_cache=1 << 30) as lm:
        monkeypatch.setattr(pool_backend.device, "free_memory", lambda: pool_backend.device.total_memory() // 65)
        first = lm.generate(ids, max_tokens=4, ignore_eos=True)
        assert len(lm.prefix_cache) == 0
        monkeypatch.undo()
        again = lm.generate(ids, max_tokens=4, ignore_eos=True)
        assert len(lm.prefix_cache) > 0
        assert first.tokens == again.tokens


def model_tensors():
    with GGUFFile.open(resolve("demo")) as file:
        return file.tensors.values()


@pytest.fixture(scope="module")
def large():
    """Sizes of a model of 27 billion parameters."""
    with GGUFFile.open(resolve("demo")) as file:
        small = Config.from_gguf(file.metadata, file.tensors)
    sizes = {"width": 5120, "ffn": 17408, "n_vocab": 248320, "heads": 24, "kv_heads": 4, "head_size": 256, "tied": False}
    delta = {"delta_key_heads": 16, "delta_value_heads": 48, "delta_size": 128}
    return replace(small, n_layers=64, recurrent=(True, True, True, False) * 16, **sizes, **delta)


def test_what_is_said_of_a_large_model(large):
    """With 310 MiB that the driver takes, it stays below a GiB."""
    assert 256 * MIB < work_bytes(large, "f16") < 600 * MIB


def test_chunks_of_prompts_are_larger_where_memory_is_plentiful(large):
    experts = replace(large, experts=256, experts_used=8, expert_ffn=512, shared_ffn=512)
    for config, chunks in ((large, load.LARGE_CHUNKS), (experts, load.EXPERTS_CHUNKS)):
        for chunk, smaller in zip(chunks, [*chunks[1:], load.CHUNK], strict=True):
            more = work_bytes(config, "f16", chunk=chunk) - work_bytes(config, "f16", chunk=load.CHUNK)
            assert [load.chunk_for(config, "f16", room) for room in (31 * more, 33 * more)] == [smaller, chunk]


def test_gathered_outputs_that_grow_row_by_row_take_twice_their_size_at_most():
    """CuPy keeps the memory of outgrown arrays."""
    gather = Gather(SimpleNamespace(width=64, n_vocab=5000), None)
    sizes = {len(gather._room("logits", n, 5000)) for n in range(1, 200)}
    assert sum(sizes) <= 2 * max(sizes) <= 2 * 2 * 199


def test_pieces_of_a_scratch_arena_do_not_overlap():
    """Pieces do not overlap; what does not fit lies elsewhere."""
    memories = [cupy.zeros(1000, cupy.float32), cupy.zeros((3, 64), cupy.float16)]
    arena = ScratchArena(memories)
    pieces = [arena.alloc(10, 20), arena.alloc(1, 700), arena.alloc(90, dtype=cupy.uint16), arena.alloc(5000)]
    spans = sorted((piece.data.ptr, piece.data.ptr + piece.nbytes) for piece in pieces)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))

    def inside(piece, memory):
        return memory.data.ptr <= piece.data.ptr and piece.data.ptr + piece.nbytes <= memory.data.ptr + memory.nbytes

    assert [[inside(piece, memory) for memory in memories] for piece in pieces] == [
        [True, False],
        [True, False],
        [False, True],
        [False, False],
    ]
    assert [piece.shape for piece in pieces] == [(10, 20), (1, 700), (90,), (5000,)]
