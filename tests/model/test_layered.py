"""Models whose layers differ: variants against the definition, what is refused, and what is described."""

from dataclasses import replace

import numpy as np
import pytest
import random_model
from compare import assert_close, assert_same_bits
from golden import load, path_of, prefill, recorded, tail
from layered_variants import KEYS, SHARED, TOKENS, VARIANTS, opened
from model_definition import logits
from test_random_models import CLOSE, computed

from dflash.cli.info import as_text
from dflash.errors import FormatError, Unsupported
from dflash.kernels.ragged import PAGE
from dflash.model.config import Config
from dflash.model.describe import overview
from dflash.model.gguf import architectures
from dflash.model.gguf.file import GGUFFile
from dflash.model.gguf.tensor_check import expected_tensors
from dflash.model.loading.settings import LoadSettings
from dflash.model.network.ops import AttendOp
from dflash.model.runnable import refuse_sizes
from dflash.model.split.plan import plan_split

NAME = "gemma4-tiny-Q8_0"


def config_of(changes=(), drop=(), architecture="gemma4"):
    keys = {name: value for name, value in (KEYS[architecture] | dict(changes)).items() if name not in drop}
    return random_model.config_of(architecture, 320, keys)[0]


@pytest.mark.parametrize(("architecture", "changes", "fused"), VARIANTS.values(), ids=VARIANTS)
def test_logits_of_every_variant_equal_the_definition(architecture, changes, fused, tmp_path):
    file, config = opened(tmp_path / "model.gguf", architecture, changes, fused, "F16")
    with file:
        assert_close("logits", computed(file, config, TOKENS), logits(file, config, TOKENS), CLOSE)


@pytest.mark.parametrize("changes", [{"attention.sliding_window": 0}, {"attention.sliding_window_pattern": 1}], ids=str)
def test_laguna_without_windows(changes, tmp_path):
    file, config = opened(tmp_path / "model.gguf", "laguna", changes, kind="F16")
    with file:
        assert not any(layer.window for layer in config.layers)
        assert_close("logits", computed(file, config, TOKENS), logits(file, config, TOKENS), CLOSE)


def test_a_gate_for_every_element(tmp_path, monkeypatch):
    """The width of the tensor decides."""
    every = architectures.ARCHITECTURES["laguna"]
    every = every._replace(full=every.full | {"attn_gate.weight": "Q H"})
    monkeypatch.setitem(architectures.ARCHITECTURES, "laguna", every)
    file, config = opened(tmp_path / "model.gguf", "laguna", kind="F16")
    with file:
        assert [layer.gate for layer in config.layers] == [64 * heads for heads in (4, 8, 6)]
        assert_close("logits", computed(file, config, TOKENS), logits(file, config, TOKENS), CLOSE)


def test_another_gate_is_refused(tmp_path):
    with GGUFFile.open(path_of("laguna-tiny-Q8_0")) as file:
        name = "blk.1.attn_gate.weight"
        tensors = dict(file.tensors) | {name: file.tensors[name]._replace(shape=(3, 32))}
        with pytest.raises(FormatError, match=r"'blk\.1\.attn_gate\.weight' has 3 rows, must have 4 or 64"):
            Config.from_gguf(file.metadata, tensors)


def test_layers_of_laguna():
    config = config_of(architecture="laguna")
    assert [(layer.heads, layer.window, layer.ffn) for layer in config.layers] == [(4, 0, 512), (8, 20, 0), (6, 0, 0)]
    assert config.rope_scaling.attn_factor == pytest.approx(1.2)
    assert config.window_rotation.rope_scaling is None
    by_period = config_of(drop=["attention.sliding_window_pattern"], architecture="laguna")
    assert [layer.window for layer in by_period.layers] == [0, 20, 20]


@pytest.mark.parametrize("name", [NAME, "laguna-tiny-Q8_0"])
def test_the_window_matters(name):
    """The recorded text is longer than the window, so that a model without it has other logits."""
    model, want = load(name), recorded(name)
    got, truth = tail(model, want)
    windows = [op for op, _ in model._run._steps if isinstance(op, AttendOp) and op.window]
    assert len(windows) == (2 if name == NAME else 1)
    for op in windows:
        object.__setattr__(op, "window", 1 << 20)
    try:
        # all tokens, but still the rotation of layers with a window
        other, _ = tail(model, want)
    finally:
        for op in windows:
            object.__setattr__(op, "window", 12)
    assert np.abs(got - truth).max() < 5e-3 < 0.1 < np.abs(other - truth).max()


def test_layers_without_keys_take_no_memory():
    model = load(NAME)
    assert [k.shape[0] for k, _ in model.pools.caches] == [1, 1]
    assert model.config.kv_shapes == {0: (2, 16), 1: (1, 32)}
    assert model.pools.page_bytes == PAGE * 2 * 4 * (2 * 16 + 32)
    assert [layer.source for layer in model.config.layers] == [0, 1, 0, 1]
    assert model.config.layers[3].ffn == 2 * model.config.layers[0].ffn


def test_tensors_of_a_layer_without_keys():
    names = expected_tensors(config_of(SHARED))
    assert "blk.1.attn_k.weight" in names
    assert not {"blk.2.attn_k.weight", "blk.3.attn_k_norm.weight", "blk.3.attn_v.weight"} & names.keys()
    assert names["blk.3.ffn_down.weight"] == (256, 512)


def test_it_is_described():
    with GGUFFile.open(path_of(NAME)) as file:
        about = overview(file)
    assert about["model"]["windows"] == {"all": 2, "12": 2}
    assert "windows        2 see all tokens, 2 see the last 12\n" in as_text(about)
    assert about["memory"]["kv_per_token"] == 2 * 2 * (2 * 16 + 32)


@pytest.mark.parametrize("name", ["gemma4", "laguna"])
def test_a_gpu_runs_it(name):
    for device in ("cpu", "cuda"):
        refuse_sizes(config_of(architecture=name), device)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention.key_length": 528}, "attention.key_length' is 528, .* must be at most 512 on device 'cuda'"),
        ({"attention.key_length_swa": 528}, "key_length_swa' is 528, .* must be at most 512 on device 'cuda'"),
        ({"attention.head_count": 260}, "head_count' is 260, .* must be at most 64 times the 4 KV heads"),
    ],
)
def test_what_a_gpu_refuses(changes, message):
    config = config_of(changes)
    refuse_sizes(config, "cpu")
    with pytest.raises(Unsupported, match=message):
        refuse_sizes(config, "cuda")


@pytest.mark.parametrize("kind", ["tensor", "layer"])
def test_several_gpus_refuse_it(kind):
    with pytest.raises(Unsupported, match="architecture 'gemma4' runs on one GPU: load it with device='cuda'"):
        plan_split(config_of(), [], LoadSettings(split=kind, devices=[0, 1]), names=["a", "b"], free=[1, 1], work=int)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"expert_count": 128}, FormatError, "key 'gemma4.expert_used_count' is missing"),
        ({"attention.sliding_window": 0}, FormatError, "sliding_window' is 0, must be a whole number from 1"),
        ({"attention.sliding_window_pattern": np.array([True])}, FormatError, "an array of 4 truth values"),
        ({"attention.head_count": 6}, FormatError, "head_count' is 6, must be a multiple of the 4 KV heads"),
        ({"attention.shared_kv_layers": 3}, FormatError, "is 3, must be so small that a layer of each kind has keys"),
        ({"attention.value_length_swa": 32}, Unsupported, "value_length_swa' is 32, must be 16 as for keys"),
        ({"rope.dimension_count_swa": 15}, FormatError, "dimension_count_swa' is 15, must be even"),
    ],
)
def test_what_is_refused(changes, error, message):
    with pytest.raises(error, match=message):
        config_of(changes)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"expert_gating_func": 1}, Unsupported, "expert_gating_func' is 1, must be 2"),
        ({"router_logit_softcapping": 30.0}, Unsupported, "router_logit_softcapping' is 30.0, must be 0"),
        (
            {"leading_dense_block_count": 4},
            FormatError,
            "leading_dense_block_count' is 4, must be a whole number from 0 to 3",
        ),
    ],
)
def test_what_laguna_refuses(changes, error, message):
    with pytest.raises(error, match=message):
        config_of(changes, architecture="laguna")


@pytest.mark.parametrize("name", ["attention.sliding_window_pattern", "rope.freq_base_swa", "attention.key_length"])
def test_missing_keys_name_themselves(name):
    with pytest.raises(FormatError, match=f"key 'gemma4.{name}' is missing"):
        config_of(drop=[name])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention.key_length_swa": 24}, r"key_length_swa' is 24, .* must be a multiple of 16"),
        ({"feed_forward_length": np.array([256, 256, 256, 40])}, r"feed_forward_length' is 40, .* multiple of 16"),
        ({"embedding_length_per_layer_input": 8}, r"per_layer_input' is 8, .* multiple of 16"),
    ],
)
def test_sizes_that_kernels_do_not_run(changes, message):
    with pytest.raises(Unsupported, match=message):
        refuse_sizes(config_of(changes), "cpu")


def test_tokens_that_are_never_chosen():
    want = recorded(NAME)
    with GGUFFile.open(path_of(NAME)) as file:
        metadata = dict(file.metadata) | {"tokenizer.ggml.suppress_tokens": np.array([7, 270], np.int32)}
        config = Config.from_gguf(metadata, file.tensors)
        assert config.suppressed == (7, 270)
        got, plain = (computed(file, replace(config, suppressed=ids), want["tokens"]) for ids in ((7, 270), ()))
        for wrong in ([-1], [280 + 8]):
            metadata["tokenizer.ggml.suppress_tokens"] = np.array(wrong, np.int32)
            with pytest.raises(
                FormatError, match=r"ggml\.suppress_tokens' is .*, must be an array of whole numbers from 0 to 287"
            ):
                Config.from_gguf(metadata, file.tensors)
    assert (got[:, [7, 270]] == -np.inf).all()
    assert_same_bits("others", np.delete(got, [7, 270], axis=1), np.delete(plain, [7, 270], axis=1))


def test_logits_are_capped():
    """Their bound is the cap of the file, which random weights come close to."""
    model = load(NAME)
    state = model.state()
    rows, _ = prefill(model, state, recorded(NAME)["tokens"])
    state.close()
    assert 3.5 < np.abs(rows).max() <= model.config.logit_cap == 4
