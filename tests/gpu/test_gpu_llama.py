"""Models of `llama` and `qwen2` in sizes of released ones on a GPU: odd widths, groups of 1 to 7 heads, any vocabulary."""

import numpy as np
import pytest
import random_model
from compare import assert_close, assert_same_bits
from golden import prefill, step
from model_definition import logits

from dflash.model.config import Config
from dflash.model.gguf.file import GGUFFile

pytest.importorskip("cupy")
TOKENS = np.random.default_rng(1).integers(0, 300, 90).astype(np.int32)
BASE = {"context_length": 512, "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 1e5, "block_count": 1}
SIZES = "embedding_length", "feed_forward_length", "attention.head_count", "attention.head_count_kv"
MODELS = {
    "SmolLM2 135M": ("llama", 514, (576, 1536, 9, 3)),
    "SmolLM2 360M": ("llama", 320, (960, 640, 15, 5)),
    "Llama 2": ("llama", 323, (512, 688, 4, 4)),
    "Qwen2.5 0.5B": ("qwen2", 320, (896, 1216, 14, 2)),
    "Qwen2.5 1.5B": ("qwen2", 320, (1536, 2240, 12, 2)),
}
"""Architecture, vocabulary and sizes; of some, the feed forward is narrower than in the released model."""
CLOSE = 6e-3


@pytest.mark.parametrize("kind", ["Q4_1", "Q4_K", "Q8_0"])
@pytest.mark.parametrize("name", MODELS)
def test_prompts_and_steps(name, kind, tmp_path):
    """Both are near the definition, and rows have the same bits alone and together."""
    from dflash.model.cuda.model import DeviceModel

    architecture, n_vocab, sizes = MODELS[name]
    random_model.write(tmp_path / "model.gguf", architecture, n_vocab, BASE | dict(zip(SIZES, sizes, strict=True)), kind)
    with GGUFFile.open(tmp_path / "model.gguf") as file:
        config = Config.from_gguf(file.metadata, file.tensors)
        want = logits(file, config, TOKENS)
        model = DeviceModel(file, config, pages=8, slots=3, kv="f16", threads=1, chunk=256)
        state = model.state()
        assert_close("prompt", prefill(model, state, TOKENS)[0], want, CLOSE)
        state.close()
        found = []
        for counts in ((1, 1, 2, 5, 9, 16, 17, 33), (8, 1, 1, 1, 1, 6, 33, 33)):
            state, rows, at = model.state(), [], 0
            for n in counts:
                rows.append(step(model, state, TOKENS[at : at + n]))
                state.commit(list(range(n)))
                at += n
            state.close()
            found.append(np.concatenate(rows))
            assert_close("steps", found[-1], want[:at], CLOSE)
        assert_same_bits("steps of other sizes", *found)
