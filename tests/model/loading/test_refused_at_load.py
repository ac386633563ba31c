"""Loading refuses models that can't run: sizes that the kernels do not support, and too little memory."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest
from drafts import KINDS as DRAFTS
from golden import PATHS

from dflash.errors import KernelError, OutOfMemory, Unsupported
from dflash.model.config import Config
from dflash.model.draft import load as draft_load
from dflash.model.gguf.file import GGUFFile
from dflash.model.loading import mtp
from dflash.model.loading import target as target_model
from dflash.model.loading.settings import LoadSettings
from dflash.model.loading.target import load_model
from dflash.model.runnable import refuse_sizes

GOLDEN = Path(__file__).parents[2] / "data" / "golden"
MTP = GOLDEN / "qwen35-r2-mtp" / "qwen35-r2-mtp-F16.gguf"
SHORTAGES = [MemoryError("Unable to allocate 9 GiB"), OSError(errno.ENOMEM, "Cannot allocate memory")]


def config_of(path):
    with GGUFFile.open(path) as file:
        return Config.from_gguf(file.metadata, file.tensors)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 72}, r"qwen35\.embedding_length' is 72, .* a multiple of 16"),
        ({"ffn": 100}, r"qwen35\.feed_forward_length' is 100"),
        ({"head_size": 8}, r"qwen35\.attention\.key_length' is 8, .* a multiple of 16"),
        ({"delta_size": 24}, r"qwen35\.ssm\.state_size' is 24"),
        ({"delta_size": 272}, r"qwen35\.ssm\.state_size' is 272, .* at most 256 on device 'cpu'"),
        ({"expert_ffn": 24}, r"qwen35\.expert_feed_forward_length' is 24"),
        ({"shared_ffn": 40}, r"qwen35\.expert_shared_feed_forward_length' is 40"),
    ],
    ids=str,
)
def test_sizes_that_no_kernel_takes(monkeypatch, changes, message):
    config = config_of(MTP)
    monkeypatch.setattr(target_model.Config, "from_gguf", lambda *_, **__: replace(config, **changes))
    with pytest.raises(Unsupported, match=message):
        load_model(MTP, LoadSettings(device="cpu", threads=1, context=256, sequences=1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_size": 512}, "key_length' is 512, .* at most 256 on device 'cuda'"),
        ({"delta_size": 144}, "state_size' is 144, .* at most 128 on device 'cuda'"),
        ({"heads": 130, "kv_heads": 2}, "head_count' is 130, .* at most 64 times the 2 KV heads"),
    ],
    ids=str,
)
def test_sizes_that_a_gpu_does_not_take(changes, message):
    config = replace(config_of(MTP), **changes)
    refuse_sizes(config, "cpu")
    with pytest.raises(Unsupported, match=message):
        refuse_sizes(config, "cuda")


@pytest.mark.parametrize("path", PATHS.values(), ids=lambda path: path.stem)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_models_that_run_are_not_refused(path, device):
    refuse_sizes(config_of(path), device)


def test_an_mtp_head_of_other_sizes(monkeypatch):
    with_head = config_of(MTP)
    with GGUFFile.open(MTP) as file:
        trunk = type("Trunk", (), {"config": with_head, "device": "cpu", "metadata": file.metadata})()
        monkeypatch.setattr(mtp.Config, "from_gguf", lambda *_: replace(with_head, head_size=8))
        with pytest.raises(Unsupported, match="key_length' is 8"):
            mtp.load_mtp(trunk, MTP)


@pytest.mark.parametrize(("kind", "rank"), [("dflash2", "selector_rank"), ("dspark", "markov_rank")])
def test_ranks_of_drafts(kind, rank):
    config = next(config for config in DRAFTS.values() if config.kind == kind)
    with pytest.raises(Unsupported, match=f"draft: {rank} 20, must be a multiple of 16"):
        replace(config, **{rank: 20})


@pytest.mark.parametrize("shortage", SHORTAGES, ids=lambda error: type(error).__name__)
def test_too_little_memory(monkeypatch, shortage):
    def fails(*_, **__):
        raise shortage

    monkeypatch.setattr(target_model, "Model", fails)
    with pytest.raises(OutOfMemory, match=r"qwen35-r2-mtp-F16\.gguf': out of memory .*llocate.*: ask for fewer sequences"):
        load_model(MTP, LoadSettings(device="cpu", threads=1, context=256, sequences=1))
    monkeypatch.setattr(draft_load, "open_draft", fails)
    target = type("Target", (), {"device": "cpu"})()
    with pytest.raises(OutOfMemory, match=r"'demo-draft': out of memory .*: use another strategy"):
        draft_load.load_draft("demo-draft", target, sequences=1)
    monkeypatch.setattr(mtp.GGUFFile, "open", fails)
    with pytest.raises(OutOfMemory, match="'demo': out of memory"):
        mtp.load_mtp(target, "demo")


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), KernelError("no")], ids=str)
def test_other_errors_stay(monkeypatch, error):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(target_model, "Model", fails)
    with pytest.raises(type(error), match=str(error).replace("[", r"\[").replace("]", r"\]")):
        load_model(MTP, LoadSettings(device="cpu", threads=1, context=256, sequences=1))


def test_memory_that_the_system_refuses():
    """Allocate a real array, larger than any address space."""
    from dflash.kernels.arrays import zeros
    from dflash.model.loading.short_memory import memory_errors

    with pytest.raises(OutOfMemory, match=r"'x': out of memory .*: less"), memory_errors("x", "less"):
        zeros(1 << 46)


def test_int8_prompts_need_a_gpu():
    with pytest.raises(Unsupported, match="prefill 'int8': needs one Hopper GPU, the model is loaded on the CPU"):
        load_model("demo", LoadSettings(device="cpu", prefill="int8"))
    with pytest.raises(Unsupported, match="prefill 'fp4': must be one of f16, int8"):
        LoadSettings(prefill="fp4")
