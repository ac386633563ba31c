"""Files of `llama` and `qwen2`: what their converters write, what follows from it, and what is refused."""

import math

import numpy as np
import pytest
import random_model
from compare import assert_close, assert_same_bits
from golden import load, path_of, prefill, recorded, step
from model_definition import logits
from test_config import config_of, info, tensors_of
from test_random_models import CLOSE, DENSE, TOKENS, computed

from dflash.errors import FormatError, Unsupported
from dflash.model.config import Config
from dflash.model.gguf.file import GGUFFile
from dflash.model.gguf.tensor_check import match_tensors
from dflash.model.model import Model
from dflash.model.rope import inverse_frequencies
from dflash.model.split.shards import Shard, ShardWeights
from dflash.model.weights import Weights, row_order

SCALING = "rope.scaling."


@pytest.mark.parametrize("n_rot", [32, 16, 6])
def test_neighbouring_rows_become_the_pairs_of_the_kernels(n_rot):
    """Element j of a head is rotated with element ``j + n_rot / 2``; elements that are not rotated keep their place."""
    config = config_of("llama", rope__dimension_count=n_rot)
    for name, heads in (("attn_q.weight", 4), ("attn_k.weight", 2)):
        order = row_order(config)[name].reshape(heads, 32) - 32 * np.arange(heads)[:, None]
        assert (order == order[0]).all()
        for j in range(n_rot // 2):
            assert (order[0, j], order[0, j + n_rot // 2]) == (2 * j, 2 * j + 1)
        assert (order[0, n_rot:] == np.arange(n_rot, 32)).all()
    assert row_order(config_of("qwen2")) == {}


@pytest.mark.parametrize("name", ["llama-tiny-Q8_0", "llama-untied-Q8_0"])
def test_devices_of_a_split_have_the_rows_of_the_whole(name):
    with GGUFFile.open(path_of(name)) as file:
        config = Config.from_gguf(file.metadata, file.tensors)
        whole = Weights(file, config)
        heads = {"attn_q.weight": config.heads, "attn_k.weight": config.kv_heads, "attn_v.weight": config.kv_heads}
        for tensor, n in heads.items():
            rows = [ShardWeights(whole, config, Shard(i, n)).block(0).matrix(tensor).data for i in range(n)]
            assert_same_bits(tensor, np.concatenate(rows), whole.block(0).matrix(tensor).data)


def test_devices_of_a_split_have_their_heads_of_the_bias(tmp_path):
    random_model.write(tmp_path / "model.gguf", "qwen2", 320, DENSE, "Q4_0")
    with GGUFFile.open(tmp_path / "model.gguf") as file:
        config = Config.from_gguf(file.metadata, file.tensors)
        whole = Weights(file, config)
        for tensor in ("attn_q.bias", "attn_k.bias", "attn_v.bias"):
            parts = [ShardWeights(whole, config, Shard(i, 2)).block(1).vector(tensor) for i in range(2)]
            assert_same_bits(tensor, np.concatenate(parts), whole.block(1).vector(tensor))


@pytest.mark.parametrize("kv", ["f32", "f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("name", ["llama-tiny-Q8_0", "qwen2-tiny-Q8_0"])
def test_a_prompt_has_the_bits_of_its_steps(name, kv):
    """Prompt, joined launch of few rows and steps of many rows add the bias and rotate alike."""
    model, tokens = load(name, kv=kv), recorded(name)["tokens"][:36]
    first, other = model.state(), model.state()
    want, _ = prefill(model, first, tokens)
    got = []
    for n in (1, 2, 4, 9, 20):
        part = tokens[sum(map(len, got)) :][:n]
        got.append(step(model, other, part))
        other.commit(list(range(n)))
    assert_same_bits("logits", np.concatenate(got), want)
    first.close()
    other.close()


def test_files_with_experts(tmp_path):
    """The number of experts decides; an expert is as wide as the feed forward."""
    assert config_of("llama", expert_count=0).ffn == 128
    config = config_of("llama", expert_count=8, expert_used_count=2)
    assert (config.ffn, config.expert_ffn, config.experts) == (0, 128, 8)
    assert "ffn_gate.weight" not in str(tensors_of(config))
    keys = DENSE | {"feed_forward_length": 256, "expert_count": 5, "expert_used_count": 2}
    for fused in ((), ("ffn_gate_up_exps.weight",)):
        random_model.write(tmp_path / "model.gguf", "llama", 320, keys, "Q4_0", fused)
        with GGUFFile.open(tmp_path / "model.gguf") as file:
            config = Config.from_gguf(file.metadata, file.tensors)
            assert_close("logits", computed(file, config, TOKENS), logits(file, config, TOKENS), CLOSE)


def test_rotation_factors_are_optional_and_used():
    name = "llama-tiny-Q8_0"
    want = recorded(name)["tokens"]
    with GGUFFile.open(path_of(name)) as file:
        config = Config.from_gguf(file.metadata, file.tensors)
        known, _ = match_tensors(config, file.tensors)
        assert "rope_freqs.weight" in known
        factors = file.array("rope_freqs.weight")
        assert factors.max() == pytest.approx(8)
        del file.tensors["rope_freqs.weight"]
        assert np.abs(computed(file, config, want) - prefill_of(name, want)).max() > 0.1


def prefill_of(name, tokens):
    model = load(name)
    state = model.state()
    rows, _ = prefill(model, state, tokens)
    state.close()
    return rows


def test_files_without_a_number_of_kv_heads_have_as_many_as_query_heads():
    assert config_of("llama", drop=["attention.head_count_kv"]).kv_heads == 4


@pytest.mark.parametrize("name", ["rope.scaling.factor", "rope.scale_linear"])
def test_a_factor_without_a_kind_scales_linearly(name):
    scaling = config_of("llama", **{name: 4.0}).rope_scaling
    assert (scaling.kind, scaling.factor) == ("linear", 4)
    assert config_of("llama", **{name: 4.0, SCALING + "type": "none"}).rope_scaling is None


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize(
    ("keys", "factor"),
    [
        ({}, 1 + 0.1 * math.log(16)),
        ({"yarn_log_multiplier": 1.0}, 1),
        ({"yarn_log_multiplier": 0.5}, (1 + 0.1 * math.log(16)) / (1 + 0.05 * math.log(16))),
        ({"yarn_attn_factor": 1.1}, 1.1),
        ({"attn_factor": 2.0}, 2 + 0.2 * math.log(16)),
        ({"yarn_attn_factor": 1.1, "attn_factor": 2.0}, 2.2),
    ],
)
def test_factor_of_cosine_and_sine_with_yarn(architecture, keys, factor):
    """That of Transformers for ``attention_factor``, or for ``mscale`` 1 and ``mscale_all_dim``."""
    keys = {SCALING + name: value for name, value in ({"type": "yarn", "factor": 16.0} | keys).items()}
    config = config_of(architecture, **keys)
    assert inverse_frequencies(config)[1] == pytest.approx(factor)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "qwen3moe"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({SCALING + "type": "longrope"}, r"rope\.scaling\.type' is 'longrope', must be 'none', 'linear' or 'yarn'"),
        (
            {"attention.sliding_window": 1024},
            r"attention\.sliding_window' is 1024, must be 0 or at least the context length 4096 in this architecture",
        ),
        ({"attention.causal": False}, r"attention\.causal' is False, must be True"),
    ],
)
def test_what_is_refused(architecture, changes, message):
    config_of(architecture, **{"attention.sliding_window": 4096})
    with pytest.raises(Unsupported, match=f"'{architecture}.{message}"):
        config_of(architecture, **changes)


def test_tensors_that_are_missing_or_not_used():
    config = config_of("qwen2")
    tensors = tensors_of(config)
    lacking = {name: tensor for name, tensor in tensors.items() if name != "blk.3.attn_v.bias"}
    with pytest.raises(FormatError, match=r"missing tensors \(1\): blk\.3\.attn_v\.bias"):
        match_tensors(config, lacking)
    for architecture, name in (
        ("qwen2", "blk.0.attn_output.bias"),
        ("llama", "blk.0.attn_q.bias"),
        ("llama", "rope_factors_long.weight"),
    ):
        config = config_of(architecture)
        with pytest.raises(Unsupported, match=rf"does not use \(1\): {name}"):
            match_tensors(config, tensors_of(config) | {name: info(name, (64,))})


def test_memory_of_sorted_rows_is_their_own():
    """The file's mapping is read-only and stays as it is."""
    with GGUFFile.open(path_of("llama-tiny-Q8_0")) as file:
        model = Model(file, Config.from_gguf(file.metadata, file.tensors), pages=2, slots=1, threads=1)
        rows = model.weights.block(0).matrix("attn_k.weight").data
        assert not np.array_equal(rows, file.data("blk.0.attn_k.weight"))
        assert np.array_equal(rows[:32], file.data("blk.0.attn_k.weight")[::2])
