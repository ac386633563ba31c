import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dflash.errors import FormatError, Unsupported
from dflash.model.config import Config
from dflash.model.gguf.file import GGUFFile, TensorInfo
from dflash.model.gguf.tensor_check import expected_tensors, match_tensors
from dflash.model.rope import inverse_frequencies

GOLDEN = Path(__file__).parent.parent / "data" / "golden"
PACKAGED = Path(__file__).parent.parent.parent / "dflash" / "data"
TARGETS = sorted([*GOLDEN.glob("*/*.gguf"), PACKAGED / "demo-Q4_K_M.gguf"])

COMMON = {
    "block_count": 9,
    "context_length": 4096,
    "embedding_length": 64,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 32,
    "attention.value_length": 32,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 1e7,
}
HYBRID = {
    "nextn_predict_layers": 1,
    "rope.dimension_count": 16,
    "rope.dimension_sections": np.array([3, 3, 2, 0], np.int32),
    "ssm.conv_kernel": 4,
    "ssm.state_size": 16,
    "ssm.group_count": 2,
    "ssm.time_step_rank": 6,
    "ssm.inner_size": 96,
    "full_attention_interval": 4,
}
EXPERTS = {
    "expert_count": 8,
    "expert_used_count": 2,
    "expert_feed_forward_length": 24,
    "expert_shared_feed_forward_length": 40,
}
KEYS = {
    "qwen35": COMMON | HYBRID | {"feed_forward_length": 128},
    "qwen35moe": COMMON | HYBRID | EXPERTS,
    "qwen3": COMMON | {"feed_forward_length": 128},
    "qwen2": COMMON | {"feed_forward_length": 128},
    "llama": COMMON | {"feed_forward_length": 128},
    "qwen3moe": COMMON | {name: size for name, size in EXPERTS.items() if "shared" not in name},
    "qwen3next": COMMON | {name: size for name, size in HYBRID.items() if "sections" not in name} | EXPERTS,
}
EVERY_FOURTH = tuple((i + 1) % 4 != 0 for i in range(8))


def info(name, shape):
    return TensorInfo(name, shape, "F32", 0, 4, 0)


def config_of(architecture="qwen35", *, drop=(), tensors=("token_embd.weight", "blk.8.attn_norm.weight"), **changes):
    """Config of a small model, some keys (dots written as two underscores) changed or dropped."""
    keys = KEYS[architecture] | {name.replace("__", "."): value for name, value in changes.items()}
    metadata = {f"{architecture}.{name}": value for name, value in keys.items() if name not in drop}
    metadata |= {"general.architecture": architecture, "tokenizer.ggml.tokens": ["a", "b"]}
    return Config.from_gguf(metadata, {name: info(name, (50, 64)) for name in tensors})


def tensors_of(config, present=()):
    return {name: info(name, shape) for name, shape in expected_tensors(config, present).items()}


@pytest.mark.parametrize("path", TARGETS, ids=lambda path: path.stem)
def test_real_files_hold_exactly_what_is_expected(path):
    with GGUFFile.open(path) as file:
        config = Config.from_gguf(file.metadata, file.tensors)
        known, unknown = match_tensors(config, file.tensors)
        assert known == file.tensors
        assert unknown == ()
        assert config.n_mtp == ("nextn_predict_layers" in str(list(file.metadata)))
        assert config.n_layers == file.metadata[f"{config.architecture}.block_count"] - config.n_mtp
        mixers = [f"blk.{i}.ssm_a" in file.tensors for i in range(config.n_layers)]
        assert config.recurrent == tuple(mixers)


def test_every_field_of_the_demo():
    with GGUFFile.open(PACKAGED / "demo-Q4_K_M.gguf") as file:
        config = Config.from_gguf(file.metadata, file.tensors)
    assert config == Config(
        architecture="qwen35",
        n_layers=8,
        n_mtp=1,
        width=512,
        n_vocab=16384,
        context=32768,
        ffn=1536,
        heads=4,
        kv_heads=2,
        head_size=256,
        norm_eps=float(np.float32(1e-6)),
        rope_base=1e7,
        n_rot=64,
        rope_sections=(11, 11, 10, 0),
        rope_scaling=None,
        recurrent=EVERY_FOURTH,
        delta_key_heads=4,
        delta_value_heads=12,
        delta_size=128,
        conv_width=4,
        experts=0,
        experts_used=0,
        expert_ffn=0,
        shared_ffn=0,
        tied=True,
    )
    assert config.n_blocks == 9


@pytest.mark.parametrize("architecture", KEYS)
def test_missing_keys_name_themselves(architecture):
    defaults = {
        "attention.key_length",
        "attention.value_length",
        "rope.freq_base",
        "full_attention_interval",
        "nextn_predict_layers",
    }
    if "ssm.state_size" not in KEYS[architecture]:
        defaults.add("attention.head_count_kv")
    config_of(architecture, drop=defaults, rope__dimension_count=16)
    for name in KEYS[architecture].keys() - defaults - {"rope.dimension_count"}:
        with pytest.raises(FormatError, match=f"key '{architecture}.{name}' is missing"):
            config_of(architecture, drop=[name])


def test_missing_keys_have_the_defaults_of_their_architecture():
    config = config_of("qwen3", drop=["attention.key_length", "attention.value_length", "rope.freq_base"])
    assert (config.head_size, config.n_rot, config.rope_base, config.n_mtp) == (16, 16, 1e4, 0)
    assert config.recurrent == (False,) * 9
    assert config_of(drop=["full_attention_interval"]).recurrent == EVERY_FOURTH
    assert config_of("qwen3", attention__head_count=3, attention__head_count_kv=3).heads * 32 != config.width


class TestKinds:
    def test_the_list_wins_over_the_interval(self):
        listed = np.array([True, False] * 4 + [False])
        config = config_of(attention__recurrent_layers=listed, full_attention_interval=4)
        assert config.recurrent == (True, False) * 4

    def test_heads_of_0_win_over_the_interval(self):
        config = config_of(attention__head_count_kv=np.array([0, 0, 2] * 3, np.uint32))
        assert config.recurrent == (True, True, False, True, True, False, True, True)
        assert config.kv_heads == 2

    def test_an_array_without_0_does_not(self):
        config = config_of(attention__head_count_kv=np.full(9, 2), attention__head_count=np.full(9, 4))
        assert (config.recurrent, config.heads, config.kv_heads) == (EVERY_FOURTH, 4, 2)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"attention__recurrent_layers": np.array([True] * 9)}, "recurrent_layers.*MTP blocks, 8 and up"),
            ({"attention__recurrent_layers": np.array([True] * 8)}, "array of 9 numbers, one for each block"),
            ({"attention__recurrent_layers": "all"}, "recurrent_layers' is 'all'"),
            ({"attention__head_count_kv": np.array([2] * 8 + [0])}, "head_count_kv.*MTP blocks"),
            ({"attention__head_count_kv": np.zeros(9, int)}, "head_count_kv"),
            ({"full_attention_interval": 0}, "full_attention_interval' is 0"),
        ],
    )
    def test_absurd_sizes_are_refused_by_key(self, changes, message):
        with pytest.raises(FormatError, match=message):
            config_of(**changes)

    def test_zero_heads_in_full_attention(self):
        listed = np.array([True, False] * 4 + [False])
        with pytest.raises(FormatError, match=r"head_count_kv.*at least 1"):
            config_of(attention__recurrent_layers=listed, attention__head_count_kv=np.array([0] * 9))

    def test_blocks_that_differ(self):
        for name in ("attention__head_count_kv", "attention__head_count"):
            with pytest.raises(Unsupported, match="the same in every block"):
                config_of(**{name: np.array([2, 2, 2, 2, 2, 2, 2, 4, 2])})
        with pytest.raises(Unsupported, match=r"feed_forward_length.*the same"):
            config_of(feed_forward_length=np.array([128] * 8 + [64]))
        assert config_of(feed_forward_length=np.full(9, 128)).ffn == 128


def test_sections_under_another_key():
    config = config_of(drop=["rope.dimension_sections"], mrope_sections=np.array([4, 2, 2]))
    assert config.rope_sections == (4, 2, 2, 0)
    assert config_of("qwen3", mrope_sections=np.array([4, 2, 2])).rope_sections == ()


def test_mtp_blocks_that_the_file_does_not_hold():
    config = config_of(tensors=["token_embd.weight", "output.weight"])
    assert (config.n_layers, config.n_mtp, config.tied) == (8, 0, False)


def test_yarn_scaling_is_read():
    keys = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 1024}
    scaling = config_of("qwen3", **keys, rope__scaling__yarn_beta_fast=16.0).rope_scaling
    assert (scaling.kind, scaling.factor, scaling.original_context) == ("yarn", 4, 1024)
    assert (scaling.ext_factor, scaling.beta_fast, scaling.beta_slow) == (1, 16, 1)
    assert config_of("qwen3", rope__scaling__type="none").rope_scaling is None
    with pytest.raises(FormatError, match=r"scaling\.factor' is missing"):
        config_of("qwen3", rope__scaling__type="yarn")
    with pytest.raises(Unsupported, match=r"scaling\.type' is 'longrope'"):
        config_of("qwen3", rope__scaling__type="longrope")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope.scaling.yarn_beta_fast": 0.0}, r"rope\.scaling\.yarn_beta_fast' is 0\.0, must be a number from 1e-06"),
        ({"rope.scaling.yarn_beta_slow": 0.0}, r"rope\.scaling\.yarn_beta_slow' is 0\.0, must be a number from 1e-06"),
        ({"rope.freq_base": 1.0}, r"rope\.freq_base' is 1\.0, must be a number from 2"),
        ({"rope.freq_base": 1 + 1e-15}, r"rope\.freq_base' is 1\.0+1"),
    ],
)
def test_yarn_settings_that_would_divide_by_zero(changes, message):
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
    with pytest.raises(FormatError, match=message):
        config_of("qwen3", **yarn, **changes)
    config_of("qwen3", **yarn | {"rope.scaling.type": "linear"}, **changes)


@pytest.mark.parametrize("kind", ["linear", "yarn"])
@pytest.mark.parametrize("context", [1, 2**31 - 1])
@pytest.mark.parametrize("base", [2.0, 1e12])
@pytest.mark.parametrize("beta", [1e-6, 1e6])
def test_the_extremes_that_a_scaling_accepts_have_frequencies(kind, context, base, beta):
    keys = {"type": kind, "factor": 1e6, "original_context_length": context, "yarn_beta_fast": beta, "yarn_beta_slow": beta}
    scaling = {f"rope.scaling.{name}": value for name, value in keys.items()}
    config = config_of("qwen3", **scaling, **{"rope.freq_base": base, "context_length": context})
    inv_freq, gain = inverse_frequencies(config)
    assert np.isfinite(inv_freq).all()
    assert np.isfinite(gain)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_count": 0}, "block_count' is 0, must be a whole number from 1 to 1024"),
        ({"block_count": 1025}, "block_count' is 1025"),
        ({"block_count": 9.0}, r"block_count' is 9\.0"),
        ({"block_count": True}, "block_count' is True"),
        ({"block_count": np.array([9])}, r"block_count' is \[9\]"),
        ({"nextn_predict_layers": 9}, "nextn_predict_layers' is 9"),
        ({"embedding_length": 0}, "embedding_length' is 0"),
        ({"embedding_length": 2**31}, "embedding_length' is 2147483648"),
        ({"context_length": -1}, "context_length' is -1"),
        ({"attention.head_count": 0}, "head_count' is 0, must be at least 1"),
        ({"attention.head_count": 5}, "head_count' is 5, must be a multiple of the 2 KV heads"),
        ({"attention.head_count_kv": 2**20}, "head_count_kv' is 1048576"),
        ({"attention.key_length": 0}, "key_length' is 0"),
        ({"attention.key_length": 2048}, "key_length' is 2048"),
        ({"attention.layer_norm_rms_epsilon": float("nan")}, "epsilon' is nan"),
        ({"attention.layer_norm_rms_epsilon": -1e-6}, "epsilon' is -1e-06"),
        ({"rope.freq_base": float("inf")}, "freq_base' is inf"),
        ({"rope.freq_base": 0.0}, r"freq_base' is 0\.0"),
        ({"rope.dimension_count": 34}, "dimension_count' is 34, must be a whole number from 1 to 32"),
        ({"rope.dimension_count": 15}, "dimension_count' is 15, must be even"),
        ({"rope.dimension_sections": np.array([4, 4, 4, 0])}, "sections' .* sum to 8"),
        ({"rope.dimension_sections": np.array([8, 0])}, "sections' .* 3 or 4 numbers"),
        ({"rope.dimension_sections": np.array([16, -8, 0])}, r"sections' is \[16, -8, 0\]"),
        ({"rope.dimension_sections": np.array([4.0, 4.0, 0.0])}, r"sections' is \[4\.0"),
        ({"rope.dimension_sections": ["3", "3", "2"]}, r"sections' is \['3'"),
        ({"ssm.conv_kernel": 1}, "conv_kernel' is 1"),
        ({"ssm.state_size": 0}, "state_size' is 0"),
        ({"ssm.time_step_rank": 5}, "time_step_rank' is 5, must be a multiple of the 2 key heads"),
        ({"ssm.inner_size": 95}, "inner_size' is 95, must be 6 value heads of 16, 96"),
        ({"feed_forward_length": 0}, "feed_forward_length' is 0"),
    ],
    ids=str,
)
def test_absurd_values_are_refused(changes, message):
    with pytest.raises(FormatError, match=message):
        config_of(**changes)


@pytest.mark.parametrize("changes", [{"expert_count": 0}, {"expert_used_count": 9}, {"expert_used_count": 0}], ids=str)
def test_absurd_experts_are_refused(changes):
    with pytest.raises(FormatError, match=f"{next(iter(changes))}' is"):
        config_of("qwen35moe", **changes)


def test_heads_that_do_not_divide_the_width():
    with pytest.raises(FormatError, match="head_count' is 6, must be a divisor of the width 64"):
        config_of(drop=["attention.key_length"], attention__head_count=6)


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("qwen35", {"attention.value_length": 16}),
        ("qwen35", {"ssm.v_head_reordered": False}),
        ("qwen35moe", {"expert_gating_func": 2}),
        ("qwen35moe", {"expert_weights_scale": 2.5}),
        ("qwen35moe", {"expert_weights_norm": False}),
        ("qwen35moe", {"expert_gating_func": np.array([1, 1])}),
    ],
    ids=str,
)
def test_other_mathematics_is_unsupported(architecture, changes):
    with pytest.raises(Unsupported, match=next(iter(changes)).replace(".", r"\.")):
        config_of(architecture, **changes)


def test_other_architectures_are_unsupported():
    with pytest.raises(
        Unsupported, match="architecture 'phi3': supported are qwen35, qwen35moe, qwen3, qwen3moe, qwen2, llama, qwen3next"
    ):
        Config.from_gguf({"general.architecture": "phi3"}, {})
    with GGUFFile.open(PACKAGED / "draft-Q4_K_M.gguf") as file, pytest.raises(Unsupported, match="draft model"):
        Config.from_gguf(file.metadata, file.tensors)
    with pytest.raises(FormatError, match=r"'general\.architecture' is missing"):
        Config.from_gguf({}, {})
    with pytest.raises(FormatError, match=r"'general\.architecture' is 3"):
        Config.from_gguf({"general.architecture": 3}, {})


def test_a_vocabulary_must_fit_the_embedding():
    with pytest.raises(FormatError, match=r"'token_embd\.weight' is missing"):
        config_of(tensors=[])
    metadata = {f"qwen3.{name}": value for name, value in KEYS["qwen3"].items()} | {"general.architecture": "qwen3"}
    metadata["tokenizer.ggml.tokens"] = ["x"] * 51
    with pytest.raises(FormatError, match="50 rows, must have one for each of 51 tokens"):
        Config.from_gguf(metadata, {"token_embd.weight": info("token_embd.weight", (50, 64))})


class TestTensors:
    @pytest.mark.parametrize("architecture", KEYS)
    def test_the_plain_set_matches_itself(self, architecture):
        config = config_of(architecture)
        tensors = tensors_of(config)
        assert match_tensors(config, tensors) == (tensors, ())
        assert ("output.weight" in expected_tensors(replace(config, tied=False))) and "output.weight" not in tensors

    def test_missing_tensors_are_listed(self):
        config = config_of()
        tensors = tensors_of(config)
        del tensors["blk.3.attn_q.weight"], tensors["blk.0.ssm_dt.bias"]
        with pytest.raises(FormatError, match=r"missing tensors \(2\): blk\.0\.ssm_dt\.bias, blk\.3\.attn_q\.weight$"):
            match_tensors(config, tensors)
        with pytest.raises(FormatError, match=r"missing tensors \(122\): .* and 114 more$"):
            match_tensors(config, {})

    def test_a_wrong_shape_is_named(self):
        config = config_of()
        tensors = tensors_of(config) | {"blk.0.ssm_conv1d.weight": info("blk.0.ssm_conv1d.weight", (4, 160))}
        with pytest.raises(FormatError, match=r"'blk\.0\.ssm_conv1d\.weight' has shape \(4, 160\), must have \(160, 4\)"):
            match_tensors(config, tensors)

    def test_encoders_of_images_and_audio_are_listed_and_ignored(self):
        config = config_of()
        tensors = tensors_of(config)
        extra = {name: info(name, (3,)) for name in ("v.patch.weight", "mm.0.weight", "a.blk.0.ffn_up.weight")}
        assert match_tensors(config, extra | tensors) == (tensors, tuple(extra))

    @pytest.mark.parametrize(
        "name", ["blk.0.ffn_gate.scale2", "blk.9.attn_norm.weight", "rope_freqs.weight", "blk.3.attn_q.bias", "cls.weight"]
    )
    def test_a_tensor_that_would_not_be_used_is_refused(self, name):
        config = config_of()
        with pytest.raises(Unsupported, match=rf"does not use \(1\): {re.escape(name)}$"):
            match_tensors(config, tensors_of(config) | {name: info(name, (3,))})

    def test_an_mtp_block_that_would_run_as_a_layer_names_the_missing_key(self):
        config = config_of()
        extra = {f"blk.7.nextn.{part}": info(f"blk.7.nextn.{part}", (3,)) for part in ("enorm.weight", "hnorm.weight")}
        with pytest.raises(Unsupported, match=rf"\(2\): blk\.7\.nextn.*'{config.architecture}\.nextn_predict_layers'"):
            match_tensors(config, tensors_of(config) | extra)

    @pytest.mark.parametrize("kind", ["scale", "input_scale"])
    def test_weights_with_scales_are_unsupported(self, kind):
        config = config_of()
        name = f"blk.0.ffn_up.{kind}"
        with pytest.raises(Unsupported, match=name):
            match_tensors(config, tensors_of(config) | {name: info(name, (1,))})

    @pytest.mark.parametrize("architecture", sorted(KEYS.keys() - {"llama", "qwen2"}))
    def test_fused_attention_tensors_match(self, architecture):
        config = config_of(architecture)
        present = ["blk.3.attn_qkv.weight"]
        shapes = expected_tensors(config, present)
        queries = config.heads * config.head_size * (2 if config.blocks.gated else 1)
        assert shapes[present[0]] == (queries + 2 * config.kv_heads * config.head_size, config.width)
        assert not {f"blk.3.attn_{part}.weight" for part in "qkv"} & shapes.keys()
        assert "blk.7.attn_q.weight" in shapes
        tensors = tensors_of(config, present)
        assert match_tensors(config, tensors).known == tensors

    def test_fused_expert_tensors_match(self):
        config = config_of("qwen35moe")
        fused = "blk.2.ffn_gate_up_exps.weight"
        shapes = expected_tensors(config, [fused])
        assert shapes[fused] == (8, 48, 64)
        assert not {"blk.2.ffn_gate_exps.weight", "blk.2.ffn_up_exps.weight"} & shapes.keys()
        tensors = tensors_of(config, [fused])
        assert match_tensors(config, tensors).known == tensors

    def test_fused_beside_separate_is_refused(self):
        config = config_of("qwen35moe")
        fused = "blk.2.ffn_gate_up_exps.weight"
        tensors = tensors_of(config)
        with pytest.raises(Unsupported, match=rf"does not use \(1\): {fused}"):
            match_tensors(config, tensors | {fused: info(fused, (8, 48, 64))})

    def test_dt_under_its_short_name(self):
        config = config_of()
        tensors = {name.replace("ssm_dt.bias", "ssm_dt"): tensor for name, tensor in tensors_of(config).items()}
        tensors = {name: tensor._replace(name=name) for name, tensor in tensors.items()}
        known, unknown = match_tensors(config, tensors)
        assert known["blk.0.ssm_dt.bias"].name == "blk.0.ssm_dt"
        assert unknown == ()

    @pytest.mark.parametrize("shape", [(64,), (1, 64), (1, 1, 64)])
    def test_leading_axes_of_1_are_not_significant(self, shape):
        config = config_of("qwen35moe")
        name = "blk.0.ffn_gate_inp_shexp.weight"
        tensors = tensors_of(config) | {name: info(name, shape)}
        assert match_tensors(config, tensors).known[name].shape == shape

    def test_an_mtp_block_has_its_own_tensors(self):
        config = config_of()
        optional = ["blk.8.nextn.shared_head_norm.weight", "blk.8.nextn.embed_tokens.weight"]
        assert expected_tensors(config)["blk.8.nextn.eh_proj.weight"] == (64, 128)
        assert not set(optional) & expected_tensors(config).keys()
        assert expected_tensors(config, optional)[optional[1]] == (50, 64)
        assert "blk.8.attn_q.weight" in expected_tensors(config)
        assert "blk.8.ssm_a" not in expected_tensors(config)

    def test_a_file_of_the_mtp_block_alone(self):
        config = config_of()
        tensors = {name: tensor for name, tensor in tensors_of(config).items() if name[:5] in {"blk.8", "token", "outpu"}}
        with pytest.raises(Unsupported, match="MTP block alone"):
            match_tensors(config, tensors)
        assert match_tensors(config, tensors, trunk=False).known == tensors
        del tensors["blk.8.nextn.enorm.weight"]
        with pytest.raises(FormatError, match=r"missing tensors \(1\): blk\.8\.nextn\.enorm\.weight"):
            match_tensors(config, tensors, trunk=False)
