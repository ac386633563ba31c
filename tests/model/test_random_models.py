"""Random models against the definition: every type of weights, and projections of every arrangement."""

import layered_variants
import numpy as np
import pytest
import random_model
from compare import assert_close, assert_same_bits
from golden import FILES, path_of, prefill, recorded, truth_of
from layered_variants import TOKENS
from long_form import LONG
from model_definition import logits

from dflash.errors import FormatError
from dflash.kernels.formats import FORMATS
from dflash.model.config import Config
from dflash.model.gguf import architectures
from dflash.model.gguf.file import GGUFFile
from dflash.model.gguf.tensor_check import match_tensors
from dflash.model.model import Model
from dflash.model.runnable import refuse_sizes

CLOSE = 2e-5
"""RMS error over RMS, as for the golden models."""
COMMON = {
    "block_count": 2, "context_length": 512, "embedding_length": 256, "attention.head_count": 4,
    "attention.head_count_kv": 2, "attention.key_length": 64, "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 1e6, "expert_count": 5, "expert_used_count": 2, "expert_feed_forward_length": 256,
}  # fmt: skip
LINEAR = {
    "rope.dimension_count": 16, "expert_shared_feed_forward_length": 256, "ssm.conv_kernel": 4, "ssm.state_size": 32,
    "ssm.group_count": 4, "ssm.time_step_rank": 8, "ssm.inner_size": 256, "full_attention_interval": 2,
}  # fmt: skip
DENSE = {name: value for name, value in COMMON.items() if "expert" not in name} | {"feed_forward_length": 512}
ODD = {"embedding_length": 160, "feed_forward_length": 352, "attention.head_count": 9, "attention.head_count_kv": 3}
"""Three query heads for each KV head, and rows that are no multiple of 64."""
KEYS = {"qwen3moe": COMMON, "qwen3next": COMMON | LINEAR, "llama": DENSE | ODD, "qwen2": DENSE} | layered_variants.KEYS
FUSED = {"qwen3moe": (), "qwen3next": ("ssm_ba.weight",), "gemma4": ("attn_v.weight", "layer_output_scale.weight")}
FUSED |= {"laguna": (), "llama": ("rope_freqs.weight",), "qwen2": ()}


def written(path, architecture, kind, fused):
    random_model.write(path, architecture, 320, KEYS[architecture], kind, fused)
    file = GGUFFile.open(path)
    return file, Config.from_gguf(file.metadata, file.tensors)


def computed(file, config, tokens):
    model = Model(file, config, pages=2, slots=1, kv="f32", threads=1)
    state = model.state()
    rows, _ = prefill(model, state, tokens)
    state.close()
    return rows


def assert_as_defined(name, file, config):
    """Products with formats of whole numbers round tokens to 16 bits, which moves the logits as far as the definition's."""
    exact, rounded = (logits(file, config, TOKENS, rounding=rounding) for rounding in (False, True))
    change = np.sqrt(np.mean((rounded - exact) ** 2) / np.mean(exact**2))
    assert_close(name, computed(file, config, TOKENS), exact, CLOSE + change)


@pytest.mark.parametrize("name", FILES)
def test_the_definition_agrees_with_transformers(name):
    want = recorded(name)
    with GGUFFile.open(path_of(name)) as file:
        got = logits(file, Config.from_gguf(file.metadata, file.tensors), want["tokens"])
    truth = truth_of(want)
    assert_close(name, got[-len(truth) :], truth, CLOSE)


PAIRS = [
    (architecture, kind) for i, architecture in enumerate(KEYS) for j, kind in enumerate(FORMATS) if (i + j) % 3 == 0 or LONG
]
"""Each type of weights in two architectures, one of them with experts; DFLASH_LONG=1 tries it in all."""


@pytest.mark.parametrize(("architecture", "kind"), PAIRS)
def test_logits_of_every_tensor_type_equal_the_definition(architecture, kind, tmp_path):
    file, config = written(tmp_path / "model.gguf", architecture, kind, FUSED[architecture])
    with file:
        assert_as_defined(kind, file, config)


def test_early_files_of_qwen3next(tmp_path):
    """They hold all projections of a linear layer as the checkpoint does, with the rows of each key head together."""
    fused = ("ssm_ba.weight", "ssm_in.weight")
    file, config = written(tmp_path / "early.gguf", "qwen3next", "Q4_0", fused)
    with file:
        known, unknown = match_tensors(config, file.tensors)
        assert {"blk.0.ssm_in.weight", "blk.0.ssm_ba.weight"} <= known.keys()
        assert unknown == ()
        assert_as_defined("early", file, config)
        model = Model(file, config, pages=2, slots=1, threads=1)
        rows = model.weights.block(0)
        whole = rows.matrix("ssm_in.weight").data.reshape(4, 32 + 32 + 64 + 64, -1)
        parts = np.split(whole, (32, 64, 128), axis=1)
        for name, wanted in (("attn_qkv.weight", parts[:3]), ("attn_gate.weight", parts[3:])):
            stacked = np.concatenate([part.reshape(-1, part.shape[-1]) for part in wanted])
            assert_same_bits(name, rows.matrix(name).data, stacked)


def test_a_file_without_interleaved_projections_names_the_missing_ones(tmp_path):
    file, config = written(tmp_path / "model.gguf", "qwen3next", "Q4_0", FUSED["qwen3next"])
    with file, pytest.raises(FormatError, match=r"missing tensors \(2\): blk\.0\.ssm_alpha\.weight, blk\.0\.ssm_beta"):
        match_tensors(config, {name: tensor for name, tensor in file.tensors.items() if "ssm_ba" not in name})


def test_an_entry_is_all_that_a_mixture_of_known_parts_needs(tmp_path, monkeypatch):
    """Linear attention in tiled order, attention without a gate, experts without a shared one."""
    ffn = {"ffn_norm.weight": "H"} | architectures.ROUTED
    mixture = architectures.Architecture(architectures.LINEAR, architectures.FULL, ffn, fused=())
    monkeypatch.setitem(architectures.ARCHITECTURES, "mixture", mixture)
    monkeypatch.setitem(KEYS, "mixture", KEYS["qwen3next"])
    file, config = written(tmp_path / "mixture.gguf", "mixture", "Q8_0", ())
    with file:
        assert_as_defined("mixture", file, config)


@pytest.mark.parametrize("name", random_model.MODELS)
def test_released_sizes_are_accepted(name):
    config, shapes = random_model.config_of(*random_model.MODELS[name])
    for device in ("cpu", "cuda"):
        refuse_sizes(config, device)
    n_weights = sum(int(np.prod(shape, dtype=np.int64)) for shape in shapes.values())
    billions = {"30b-a3b": 30.5, "80b-a3b": 79.7, "coder-1.5b": 1.777, "smollm2-135m": 0.163}  # all with a head of their own
    assert n_weights / 1e9 == pytest.approx(billions[name], rel=0.003)
