"""The draft doctor: layers with known damage are found."""

import json
import shutil
from functools import cache

import gguf
import numpy as np
import pytest

import dflash
from dflash.errors import RequestError
from dflash.evaluation.features import recorded
from dflash.evaluation.features.recorded import write
from dflash.evaluation.features.swapped import Swapped

LAYERS = (1, 3, 5)
DRAFT = dflash.Strategy.named("dflash", "demo-draft")
PROMPTS = ["def gcd(a, b):", "import os\nimport sys\n\n\ndef main("]


@pytest.fixture(scope="module")
def folder(lm, tmp_path_factory):
    """Records of the target itself."""
    folder = tmp_path_factory.mktemp("features")
    dflash.capture(lm, PROMPTS, DRAFT, folder=folder, max_bytes=1 << 24, max_tokens=40, dtype="f32")
    return folder


def with_noise(folder, to, layer, size):
    """Add noise to one layer, of a size relative to the length of each row."""
    rng = np.random.default_rng(1)
    for number, record in enumerate(recorded(folder)):
        values = record.features[layer]
        noise = rng.standard_normal(values.shape)
        noise *= size * np.linalg.norm(values, axis=1, keepdims=True) / np.linalg.norm(noise, axis=1, keepdims=True)
        features = {**record.features, layer: (values + noise).astype(np.float32)}
        write(to / f"{number}.safetensors", record._replace(features=features), "f32")
    return to


@pytest.fixture(scope="module")
def damaged(lm, folder, tmp_path_factory):
    """Compare the target with its own records, to one layer of which noise of a size was added."""
    return cache(
        lambda layer, size: dflash.diagnose(lm, DRAFT, with_noise(folder, tmp_path_factory.mktemp("n"), layer, size))
    )


def by_layer(found):
    return {one.layer: one for one in found.layers}


@pytest.mark.parametrize("reference", ["the model", "its records"])
def test_a_target_is_like_itself(lm, folder, reference):
    prompts = {"prompts": PROMPTS, "max_tokens": 40} if reference == "the model" else {}
    found = dflash.diagnose(lm, DRAFT, lm if prompts else folder, **prompts)
    assert sorted(by_layer(found)) == list(LAYERS)
    assert found.tokens_per_step == found.all_swapped > 2
    for one in found.layers:
        assert one.cosine == pytest.approx(1, abs=1e-12)
        assert one.norm_ratio == pytest.approx(1, abs=1e-12)
        assert (one.tokens_per_step, one.change) == (found.tokens_per_step, 0)
    assert found.tokens == sum(len(record.tokens) for record in recorded(folder))
    assert found.verdict.startswith("no layer's features change what is accepted")


@pytest.mark.parametrize(("layer", "size"), [(1, 2), (3, 0.5), (5, 2)])
def test_the_layer_with_noise_is_named_first_with_its_size(damaged, layer, size):
    found = damaged(layer, size)
    assert found.layers[0].layer == layer
    length = (1 + size**2) ** 0.5  # noise is orthogonal to a row, nearly so in 512 dimensions
    assert found.layers[0].cosine == pytest.approx(1 / length, abs=0.02)
    assert found.layers[0].norm_ratio == pytest.approx(1 / length, abs=0.02)
    assert found.layers[0].change == found.all_swapped - found.tokens_per_step <= 0
    for one in found.layers[1:]:
        assert one.cosine == pytest.approx(1, abs=1e-12)
        assert one.change == 0
    assert f"layer {layer} " in found.verdict


def test_noise_of_greater_size_costs_more(damaged):
    assert damaged(5, 2).all_swapped > damaged(5, 8).all_swapped


def coarser(lm, path, block):
    """Round the matrices of one block of the demo to 2 bits: the lower half of each 4-bit code becomes 0."""
    shutil.copy(lm.file.path, path)
    for tensor in gguf.GGUFReader(path, "r+").tensors:
        if tensor.name.startswith(f"blk.{block}.") and tensor.tensor_type == gguf.GGMLQuantizationType.Q4_K:
            tensor.data.reshape(-1, 144)[:, 16:] &= 0xCC  # after two scales and 12 bytes of them
            tensor.data.flush()
    return path


def test_a_block_that_is_quantized_anew_is_found(lm, tmp_path):
    with dflash.load(coarser(lm, tmp_path / "coarse.gguf", block=4), device="cpu", isolate=False) as coarse:
        found = dflash.diagnose(coarse, DRAFT, lm, PROMPTS, max_tokens=40)
    layers = by_layer(found)
    assert found.layers[0].layer == 5
    assert layers[5].cosine < 0.99
    for layer in (1, 3):  # before the block
        assert layers[layer].cosine == pytest.approx(1, abs=1e-12)
        assert layers[layer].change == 0
    assert found.all_swapped == layers[5].tokens_per_step


def test_swapped_features_never_change_the_output(lm, folder):
    record = recorded(folder)[0]
    rng = np.random.default_rng(0)
    noise = {layer: rng.standard_normal(record.features[layer].shape) for layer in LAYERS}
    n = len(record.tokens) - record.n_prompt
    prompt = record.tokens[: record.n_prompt].tolist()
    for features in ({}, {3: noise[3]}, noise):
        generation = lm.generate(prompt, strategy=dflash.Strategy(Swapped(DRAFT.drafter, features)), max_tokens=n)
        assert prompt + generation.tokens == record.tokens.tolist()
        assert any(step.drafted for step in generation.steps)


def test_a_head_reads_the_output_of_the_last_norm(lm, tmp_path):
    n = lm.model.config.n_layers
    dflash.capture(lm, PROMPTS, "mtp", folder=tmp_path, max_bytes=1 << 24, max_tokens=30, dtype="f32")
    same = dflash.diagnose(lm, "mtp:3", tmp_path)
    noisy = dflash.diagnose(lm, "mtp:3", with_noise(tmp_path, tmp_path, n, 8))
    assert (same.layers[0].layer, same.layers[0].change) == (n, 0)
    assert noisy.tokens_per_step == same.tokens_per_step > noisy.all_swapped


def test_it_prints_and_records_itself(damaged):
    found = damaged(5, 8)
    first = found.layers[0]
    text = repr(found)
    assert f"| {first.cosine:.5f} |" in text
    assert found.verdict in text
    values = json.loads(json.dumps(found.as_dict()))
    assert [one["layer"] for one in values["layers"]] == [one.layer for one in found.layers]
    assert values["environment"]["model"]
    assert values["verdict"] == found.verdict


def test_references_that_do_not_fit_are_refused(lm, folder, tmp_path):
    with pytest.raises(RequestError, match=r"PromptLookup.*reads no hidden states"):
        dflash.diagnose(lm, "lookup", folder)
    with pytest.raises(RequestError, match="leave prompts out"):
        dflash.diagnose(lm, DRAFT, folder, PROMPTS)
    with pytest.raises(RequestError, match=rf"lacks layer {lm.model.config.n_layers}"):
        dflash.diagnose(lm, "mtp", folder)
    dflash.capture(lm, ["import os"], DRAFT, folder=tmp_path, max_bytes=1 << 24)
    with pytest.raises(RequestError, match="no recorded text has two output tokens"):
        dflash.diagnose(lm, DRAFT, tmp_path)
    record = recorded(tmp_path)[0]
    narrow = {layer: values[:, :64] for layer, values in record.features.items()}
    write(tmp_path / "000000.safetensors", record._replace(features=narrow), "f16")
    with pytest.raises(RequestError, match="of another width"):
        dflash.diagnose(lm, DRAFT, tmp_path)
