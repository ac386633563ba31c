"""Models on a GPU whose layers differ: variants against the definition, and what they never choose."""

from dataclasses import replace

import numpy as np
import pytest
from compare import assert_close
from golden import prefill, step
from layered_variants import TOKENS, VARIANTS, opened, without_ties

pytest.importorskip("cupy")
device_model = pytest.importorskip("dflash.model.cuda.model")

LOGITS, QUANTIZED = 4e-3, {"q8_0": 1.2e-2, "q4_0": 0.1}
"""RMS error over RMS, as for the golden models; and with a quantized cache. A value that rounds to another step differs by
almost 1% of its block's largest there, with q4_0 by 12%. Without quantization the errors would be 2e-2 and 0.24."""


def device(file, config, kv="f16"):
    return device_model.DeviceModel(file, config, pages=4, slots=2, kv=kv, chunk=256)


def assert_alike(model, tokens, want, ratio):
    """A prompt, and the same tokens as pending rows."""
    state = model.state()
    assert_close("prompt", prefill(model, state, tokens)[0], want, ratio)
    state.close()
    state, rows = model.state(), []
    for part in np.split(tokens, (1, 6, 8, 24)):
        rows.append(step(model, state, part))
        state.commit(range(len(part)))
    assert_close("steps", np.concatenate(rows), want, ratio)
    state.close()


@pytest.mark.parametrize(("architecture", "changes", "fused"), VARIANTS.values(), ids=VARIANTS)
def test_variants(architecture, changes, fused, tmp_path):
    file, config = opened(tmp_path / "model.gguf", architecture, changes, fused)
    with file:
        assert_alike(device(file, config), *without_ties(file, config), LOGITS)


@pytest.mark.parametrize("kv", QUANTIZED)
def test_a_quantized_cache(kv, tmp_path):
    # such errors choose other experts, whose logits differ altogether
    file, config = opened(tmp_path / "model.gguf", "laguna", {"leading_dense_block_count": 3} if kv == "q4_0" else {})
    with file:
        assert_alike(device(file, config, kv), *without_ties(file, config, kv), QUANTIZED[kv])


def test_tokens_that_are_never_chosen(tmp_path):
    file, config = opened(tmp_path / "model.gguf", *VARIANTS["keys as values"])
    with file:
        model = device(file, replace(config, suppressed=(7, 270)))
        state = model.state()
        for rows in (prefill(model, state, TOKENS[:9])[0], step(model, state, TOKENS[9:12])):
            assert (rows[:, [7, 270]] == -np.inf).all()
            assert np.isfinite(np.delete(rows, [7, 270], axis=1)).all()
        state.close()
