"""Loading on a GPU, tested without one: reasons not to use a GPU, and models that do not fit."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dflash.errors import OutOfMemory, RequestError, Unsupported
from dflash.kernels.gpu import device
from dflash.model.config import Config
from dflash.model.describe import describe, overview
from dflash.model.gguf.file import GGUFFile
from dflash.model.loading.hub import resolve
from dflash.model.loading.settings import LoadSettings
from dflash.model.loading.target import load_model
from dflash.model.state.budget import CONVERSATIONS, Need, kept_unpacked, n_pages, unpacked_size

GIB = 1 << 30


@pytest.fixture
def trouble(monkeypatch):
    """Simulate a machine without a GPU."""
    monkeypatch.setattr(device, "trouble", lambda *_: "there is no NVIDIA GPU")


@pytest.fixture(scope="module")
def file():
    with GGUFFile.open(resolve("demo")) as file:
        yield file


def config_of(file):
    return Config.from_gguf(file.metadata, file.tensors)


def test_a_cpu_model_has_no_trouble_with_a_gpu(trouble):
    with pytest.raises(Unsupported, match="device 'cuda': there is no NVIDIA GPU"):
        load_model("demo", LoadSettings(device="cuda"))
    with pytest.raises(Unsupported, match="device 'cuda:3': there is no NVIDIA GPU"):
        load_model("demo", LoadSettings(device="cuda:3"))
    with pytest.raises(Unsupported, match="'gpu': must be one of auto, cpu, cuda, or a GPU as cuda:1"):
        load_model("demo", LoadSettings(device="gpu"))
    assert load_model("demo", LoadSettings(device="auto", threads=1)).trouble == "there is no NVIDIA GPU"
    assert load_model("demo", LoadSettings(device="cpu", threads=1)).trouble is None


def test_an_overview_says_why(trouble, file):
    assert overview(file, device="auto")["device"]["no_gpu"] == "there is no NVIDIA GPU"
    assert "no_gpu" not in overview(file)["device"]


@pytest.mark.parametrize(
    ("n", "sentence"),
    [
        (0, "there is no NVIDIA GPU"),
        (1, "this process sees one GPU, cuda:0"),
        (8, "this process sees 8 GPUs, cuda:0 to cuda:7"),
    ],
)
def test_gpus_of_a_process_are_counted(n, sentence):
    assert device.seen(n) == sentence


@pytest.mark.parametrize(
    ("capability", "found"), [("61", "6.1, kernels need 8.0"), ("75", "7.5, kernels need 8.0"), ("80", None), ("120", None)]
)
def test_the_age_of_a_gpu(monkeypatch, capability, found):
    cupy = pytest.importorskip("cupy")
    runtime = SimpleNamespace(getDeviceCount=lambda: 1, getDeviceProperties=lambda _: {"name": b"GPU"})
    monkeypatch.setattr(device, "_has_driver", lambda: True)
    monkeypatch.setattr(cupy.cuda, "runtime", runtime)
    monkeypatch.setattr(cupy.cuda, "Device", lambda _: SimpleNamespace(compute_capability=capability))
    monkeypatch.setattr(cupy, "zeros", lambda *_: None)
    message = device.trouble.__wrapped__()
    assert message is None if found is None else found in message


def test_a_driver_that_does_not_answer(monkeypatch):
    cupy = pytest.importorskip("cupy")

    def fails():
        raise RuntimeError("driver version is insufficient")

    monkeypatch.setattr(device, "_has_driver", lambda: True)
    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", fails)
    assert "insufficient" in device.trouble.__wrapped__()


@pytest.mark.parametrize(
    ("free", "sequences", "context", "error", "words"),
    [
        (3 * GIB // 4, 1, None, OutOfMemory, "its weights take 33 MiB, 1 sequences"),
        (7 * GIB // 4, 60, None, OutOfMemory, "60 sequences 1[0-9]{3} MiB"),
        (7 * GIB // 4, 39, 32768, RequestError, "the memory left on the GPU is"),
    ],
)
def test_too_little_memory(monkeypatch, file, free, sequences, context, error, words):
    pytest.importorskip("cupy")
    from dflash.model.cuda.load import load_on_gpu

    monkeypatch.setattr(device, "free_memory", lambda: free)
    settings = LoadSettings(context=context, sequences=sequences, kv="f32", pending=64)
    with pytest.raises(error, match=words):
        load_on_gpu(file, config_of(file), settings, threads=1, tell=lambda _: None)


def advice(file, sequences, free, pending=64):
    """Return the end of the message for a GPU with these free bytes."""
    from dflash.model.cuda.load import load_on_gpu

    config = Config.from_gguf(file.metadata, file.tensors, pending=pending)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(OutOfMemory) as raised:
        patch.setattr(device, "free_memory", lambda: free)
        load_on_gpu(file, config, LoadSettings(sequences=sequences, pending=pending), threads=1, tell=lambda _: None)
    return str(raised.value).rpartition("; ")[2]


@pytest.mark.parametrize(("sequences", "gib", "pending"), [(8, 7, 16), (64, 62, 16), (64, 122, 64), (8, 62, 64), (64, 7, 8)])
def test_many_sequences_have_fewer_pending_rows_where_memory_is_short(file, sequences, gib, pending):
    """A 27B: 433 MiB for 64 pending rows of a sequence. 7 GiB are left on a card of 24, 62 and 122 on larger ones."""
    pytest.importorskip("cupy")
    from dflash.model.cuda.load import _pending_for

    heads = {"delta_key_heads": 16, "delta_value_heads": 48, "delta_size": 128}
    config = replace(config_of(file), recurrent=(True,) * 48, **heads)
    assert _pending_for(config, "f16", sequences, gib * GIB) == pending


def test_an_error_counts_the_sequences_that_fit(file, monkeypatch):
    """The numbers are those of loading: as many load, and one more does not."""
    pytest.importorskip("cupy")
    from dflash.model.cuda import load

    words = advice(file, 500, 2 * GIB)
    assert words.startswith("set sequences or pending: ")
    found = {int(rows): int(n) for n, rows in re.findall(r"(\d+) sequences fit with pending=(\d+)", words)}
    assert list(found) == [64, 16, 8, 1]
    assert 0 < found[64] < found[16] < found[8] < found[1] < 500
    monkeypatch.setattr(device, "free_memory", lambda: 2 * GIB)
    monkeypatch.setattr(load, "DeviceModel", lambda *_, slots, **__: slots - 1)
    for rows, n in found.items():
        config = Config.from_gguf(file.metadata, file.tensors, pending=rows)
        fits, more = (LoadSettings(sequences=each, pending=rows) for each in (n, n + 1))
        assert load.load_on_gpu(file, config, fits, threads=1, tell=lambda _: None) == n
        with pytest.raises(OutOfMemory):
            load.load_on_gpu(file, config, more, threads=1, tell=lambda _: None)
    assert advice(file, 500, 2 * GIB, pending=8).count("sequences fit") == 2
    assert advice(file, 500, GIB // 2) == "no sequence fits beside them, with any number of pending rows"


@pytest.mark.parametrize("pending", [1, 16, 64])
def test_memory_of_pending_rows(file, pending):
    config = Config.from_gguf(file.metadata, file.tensors, pending=pending)
    need, one = Need.of(config, "f16"), Need.of(replace(config, pending=1), "f16")
    assert need.pending == pending * one.pending
    assert (need.page, need.state) == (one.page, one.state)
    assert overview(file, pending=pending)["memory"]["pending_per_sequence"] == need.pending


def test_pages_of_a_gpu(file):
    config = config_of(file)
    pages, context = n_pages(config, LoadSettings(), room=1 << 40)
    assert (pages, context) == (8 * config.context // 256, config.context)
    fewer, context = n_pages(config, LoadSettings(), room=1 << 28)
    assert context <= config.context
    assert 1 <= fewer < pages


def test_a_given_context_leaves_room_for_the_prefix_cache(file):
    config, page = config_of(file), Need.of(config_of(file), "f16").page
    short, long = (LoadSettings(sequences=64, context=context) for context in (2048, 39 * 256))
    assert n_pages(config, short, 40 * page) == (30, 2048)
    assert n_pages(config, long, 40 * page) == (39, 39 * 256)  # one full context comes before that


@pytest.mark.parametrize("room", [10, 40, 100, 1000])
@pytest.mark.parametrize("context", [None, 2048])
def test_pages_of_the_default_prefix_cache_hold_conversations_that_wait(file, context, room):
    """As many as fit their share of the memory, and no fewer than without a cache, nor than for one of a given size."""
    config, page = config_of(file), Need.of(config_of(file), "f16").page

    def pages(cache):
        return n_pages(config, LoadSettings(sequences=2, context=context, prefix_cache=cache), room * page)[0]

    whole, share = (context or config.context) // 256, room // 4 if context is None else room * 3 // 4
    assert pages(True) == max(min(whole, room), min(2 * whole * CONVERSATIONS, share))
    assert pages(False) == pages(1 << 30) == max(min(whole, room), min(2 * whole, share))


@pytest.mark.parametrize("room", [1, 10, 40, 100, 400])
@pytest.mark.parametrize("limit", [None, 0, 30, 1000])
@pytest.mark.parametrize("asked", [{}, {"context": 2048}, {"kv_bytes": 20}])
def test_unpacked_weights_leave_the_kv_cache_that_is_asked_for(file, room, limit, asked):
    """All in pages; the weights take 80 of them."""
    config, page = config_of(file), Need.of(config_of(file), "f16").page
    asked = {name: n * page if name == "kv_bytes" else n for name, n in asked.items()}
    settings = LoadSettings(sequences=1, unpacked_bytes=limit and limit * page, **asked)
    kept = kept_unpacked(config, settings, 80 * page, room * page, page) // page
    first = 20 if "kv_bytes" in asked else -(-asked.get("context", config.context) // 256)
    assert 0 <= kept <= min(80, max(0, room - first))
    if limit is None:
        assert kept == 0 or 40 <= kept <= room // 2
    else:
        assert kept == min(80, limit, max(0, room - first))
    if room >= first:
        assert n_pages(config, settings, (room - kept) * page)[1] == n_pages(config, settings, room * page)[1]


def test_weights_unpacked_for_prompts(file):
    """All matrices of layers but stacks of experts; as int8 those of floats take two bytes, too."""
    config, tensors = config_of(file), list(file.tensors.values())
    size, rounded = unpacked_size(config, tensors), unpacked_size(replace(config, prefill="int8"), tensors)
    ffn = config.n_layers * 3 * config.width * config.ffn
    shapes = [tensor.shape for tensor in tensors if tensor.name.startswith("blk.")]
    assert 2 * ffn < size < 2 * sum(-(-shape[0] // 32) * 32 * shape[1] for shape in shapes if len(shape) == 2)
    assert size // 2 <= rounded < 0.6 * size
    stack = tensors[0]._replace(name="blk.0.ffn_up_exps.weight", shape=(8, 64, 256))
    beyond = tensors[0]._replace(name=f"blk.{config.n_layers}.ffn_up.weight", shape=(64, 256))
    assert unpacked_size(config, [stack, beyond]) == 0


def test_quantized_pages_of_a_gpu_have_room_to_be_unpacked(file):
    config = config_of(file)
    need = Need.of(config, "q8_0")
    assert need.unpacked == 2 * 256 * config.kv_heads * config.head_size * 2
    assert Need.of(config, "f16").unpacked == 0
    room = 10 * (need.page + need.unpacked)
    settings = {"sequences": 1, "kv": "q8_0"}
    assert n_pages(config, LoadSettings(context=10 * 256, **settings), room)[0] == 10
    assert n_pages(config, LoadSettings(kv_bytes=10 * need.page, **settings), room)[0] == 10
    with pytest.raises(RequestError, match="context is 2561"):
        n_pages(config, LoadSettings(context=10 * 256 + 1, **settings), room)
    with pytest.raises(RequestError, match="only"):
        n_pages(config, LoadSettings(kv_bytes=11 * need.page, **settings), room)


def test_where_it_runs():
    about = describe("cpu", 3)
    assert (about["kind"], about["threads"]) == ("cpu", 3)
