"""Models on a GPU whose layers differ: variants against the definition, and what they never choose."""

from dataclasses import replace

import numpy as np
import pytest
from golden import prefill, step
from layered_variants import TOKENS, VARIANTS, opened
from model_definition import logits

pytest.importorskip("cupy")
device_model = pytest.importorskip("dflash.model.cuda.model")

LOGITS, SHARP = 4e-3, 2e-2
"""RMS error over RMS of most rows, as for the golden models; and where scores of heads of 512 are not divided by a root, so
that the rounding of keys to float16 matters more. In a few rows another expert may be selected, near a tie."""
QUANTIZED = 3e-2
"""The same with a q8_0 cache, whose values have eight bits."""


def device(file, config, kv="f16"):
    return device_model.DeviceModel(file, config, pages=4, slots=2, kv=kv, chunk=256)


def assert_near(name, got, want, ratio):
    errors = np.sqrt(np.mean((got - want) ** 2, axis=1) / np.mean(want**2))
    assert np.median(errors) <= ratio, f"{name}: median of the rows' errors is {np.median(errors):.3g}, allowed {ratio}"
    assert np.isfinite(got).all(), name


def assert_alike(model, want, ratio):
    """A prompt, and the same tokens as pending rows."""
    state = model.state()
    assert_near("prompt", prefill(model, state, TOKENS)[0], want, ratio)
    state.close()
    state, rows = model.state(), []
    for part in np.split(TOKENS, (1, 6, 8, 40)):
        rows.append(step(model, state, part))
        state.commit(range(len(part)))
    assert_near("steps", np.concatenate(rows), want, ratio)
    state.close()


@pytest.mark.parametrize(("architecture", "changes", "fused"), VARIANTS.values(), ids=VARIANTS)
def test_variants(architecture, changes, fused, tmp_path):
    file, config = opened(tmp_path / "model.gguf", architecture, changes, fused)
    with file:
        ratio = SHARP if config.head_size == 512 else LOGITS
        assert_alike(device(file, config), logits(file, config, TOKENS), ratio)


def test_a_quantized_cache(tmp_path):
    file, config = opened(tmp_path / "model.gguf", "laguna")
    with file:
        assert_alike(device(file, config, "q8_0"), logits(file, config, TOKENS), QUANTIZED)


def test_tokens_that_are_never_chosen(tmp_path):
    file, config = opened(tmp_path / "model.gguf", *VARIANTS["keys as values"])
    with file:
        model = device(file, replace(config, suppressed=(7, 270)))
        state = model.state()
        for rows in (prefill(model, state, TOKENS[:9])[0], step(model, state, TOKENS[9:12])):
            assert (rows[:, [7, 270]] == -np.inf).all()
            assert np.isfinite(np.delete(rows, [7, 270], axis=1)).all()
        state.close()
