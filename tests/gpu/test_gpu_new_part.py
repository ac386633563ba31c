"""An architecture with a new part on a GPU, as `docs/write-an-architecture.md` has one on the CPU: see `squared_relu`."""

import numpy as np
import pytest
import random_model
from compare import assert_close, assert_same_bits
from golden import prefill, step
from model_definition import logits
from squared_relu import architecture

from dflash.model.config import Config
from dflash.model.gguf.file import GGUFFile

pytest.importorskip("cupy")
TOKENS = np.random.default_rng(1).integers(0, 300, 40).astype(np.int32)
KEYS = {"block_count": 2, "context_length": 512, "embedding_length": 256, "feed_forward_length": 512}
KEYS |= {"attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 64, "rope.freq_base": 1e6}
KEYS |= {"attention.layer_norm_rms_epsilon": 1e-6}


def test_prompts_and_steps_of_a_feed_forward_with_squared_relu(tmp_path, monkeypatch):
    import squared_relu.cuda  # noqa: F401  registers the launch

    from dflash.model.cuda.model import DeviceModel

    architecture.add(monkeypatch)
    random_model.write(tmp_path / "model.gguf", "squared", 320, KEYS, "Q8_0")
    with GGUFFile.open(tmp_path / "model.gguf") as file:
        config = Config.from_gguf(file.metadata, file.tensors)
        want, model = logits(file, config, TOKENS), DeviceModel(file, config, pages=4, slots=2, threads=1, chunk=64)
        state = model.state()
        assert_close("prompt", prefill(model, state, TOKENS)[0], want, 6e-3)
        state.close()
        found = []
        for counts in ((1, 1, 6), (8,)):
            state, at, rows = model.state(), 0, []
            for n in counts:
                rows.append(step(model, state, TOKENS[at : at + n]))
                state.commit(range(n))
                at += n
            found.append(np.concatenate(rows))
            state.close()
        assert_close("steps", found[0], want[:8], 6e-3)
        assert_same_bits("rows alone and together", *found)
