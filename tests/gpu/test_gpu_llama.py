"""Models of `llama` and `qwen2` in sizes of released ones on a GPU: odd widths, groups of 1 to 7 heads, any vocabulary."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import random_model
from compare import assert_close, assert_same_bits
from golden import prefill, step
from model_definition import logits
from train_draft import gguf_files

from dflash.decode.engine import Engine
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.kernels.sample import SampleParams
from dflash.model.batch import Span
from dflash.model.config import Config
from dflash.model.draft import DraftRequest, load_draft
from dflash.model.draft.config import DraftConfig
from dflash.model.draft.files.names import OPTIONAL, expected
from dflash.model.gguf.file import GGUFFile
from dflash.model.gguf.tensor_check import expected_tensors
from dflash.model.loading.mtp import load_mtp
from dflash.model.model import Model
from dflash.model.recurrent_head import HeadRequest

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


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, top_p=0.9, seed=3)], ids=["greedy", "top-p"])
def test_steps_whose_tokens_are_still_being_sampled(sampling, tmp_path):
    """A step that takes its tokens on the device gives those of a step that gets them from the host."""
    from dflash.model.cuda.model import DeviceModel

    architecture, n_vocab, sizes = MODELS["SmolLM2 135M"]
    random_model.write(tmp_path / "model.gguf", architecture, n_vocab, BASE | dict(zip(SIZES, sizes, strict=True)), "Q4_1")
    with GGUFFile.open(tmp_path / "model.gguf") as file:
        model = DeviceModel(file, Config.from_gguf(file.metadata, file.tensors), pages=8, slots=4, threads=1, chunk=256)
        found = []
        for ahead in (True, False):
            model.can_overlap = ahead
            sessions = [Session(TOKENS[: 3 + n].tolist(), sampling=sampling, max_tokens=6, eos=()) for n in range(3)]
            for some in (sessions[:1], sessions[1:]):
                list(Engine(model, chunk=256).run(some))
            found.append([session.output_ids for session in sessions])
    assert [len(ids) for ids in found[0]] == [6, 6, 6]
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", ["F16", "Q8_0"])
def test_drafts_and_heads(kind, tmp_path):
    """A draft and a head with the widths of SmolLM2 propose on a GPU what they propose on a CPU."""
    from dflash.model.cuda.model import DeviceModel

    architecture, n_vocab, sizes = MODELS["SmolLM2 135M"]
    path = tmp_path / "model.gguf"
    random_model.write(path, architecture, n_vocab, BASE | dict(zip(SIZES, sizes, strict=True)), "Q8_0")
    shapes = {"n_vocab": n_vocab, "width": 576, "ffn": 1536, "heads": 9, "kv_heads": 3, "head_size": 64, "rope_base": 1e4}
    places = {"block": 8, "mask": 16, "target_layer_ids": (0,), "windows": (8, 0), "causal": (True, False)}
    config = DraftConfig("dflash", n_layers=2, norm_eps=1e-6, rope_scaling=None, **shapes, **places)
    rng = np.random.default_rng(3)

    def drawn(shape):
        return (
            rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[-1]))
            if len(shape) > 1
            else np.ones(shape, np.float32)
        )

    names = {name: shape for name, shape in expected(config, 1, 1).items() if name not in OPTIONAL}
    draft_file = gguf_files.write_draft(tmp_path / "draft.gguf", config, {n: drawn(s) for n, s in names.items()}, kind=kind)
    found = []
    with GGUFFile.open(path) as file:
        of = Config.from_gguf(file.metadata, file.tensors)
        block = expected_tensors(replace(of, n_layers=0, n_mtp=1, recurrent=()), ["blk.0.nextn.shared_head_norm.weight"])
        block = {name.removeprefix("blk.0."): drawn(shape) for name, shape in block.items() if name.startswith("blk.")}
        head_file = gguf_files.write_mtp(tmp_path / "head.gguf", path, block, kind=kind)
        for make in (partial(Model, rows=128), partial(DeviceModel, chunk=256)):
            model = make(file, of, pages=8, slots=3, kv="f16", threads=1)
            draft, head = load_draft(draft_file, model, sequences=1), load_mtp(model, head_file)
            state, drafted, own = model.state(), draft.state(), head.state()
            state.reserve(len(TOKENS))
            out = model.forward([Span.chain(state, TOKENS, prefill=True, logits=False)], capture=(0,))
            draft.read(drafted, out.captured, slice(0, len(TOKENS)))
            hidden = head.features_at(out.hidden, [slice(0, len(TOKENS))], prompt=True)[0]
            found.append(
                [
                    draft.propose([DraftRequest(drafted, 7, 7, SampleParams(), 8)])[0],
                    head.propose(
                        [
                            HeadRequest(
                                own, np.append(TOKENS[1:], 7).astype(np.int32), hidden, 3, SampleParams(), len(TOKENS) + 1, 8
                            )
                        ]
                    )[0],
                ]
            )
            for each in (state, drafted, own, draft, head):
                each.close()
    for here, there in zip(*found, strict=True):
        clear = here.scores[:, 0] - here.scores[:, 1] > 0.1
        assert clear.any()
        np.testing.assert_array_equal(there.ids[clear, 0], here.ids[clear, 0])
        assert_close("scores", there.scores, here.scores, CLOSE)
