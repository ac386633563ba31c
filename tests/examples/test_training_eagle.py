"""Training of EAGLE-3 heads with torch: the network computes what dflash runs, and training teaches it."""

from contextlib import closing

import numpy as np
import pytest
from compare import assert_close
from train_draft import recording

import dflash
from dflash.kernels.sample import SampleParams
from dflash.model.eagle.load import load_eagle
from dflash.model.recurrent_head import HeadRequest

torch = pytest.importorskip("torch")
training, eagle, written = (pytest.importorskip(f"train_draft.{name}") for name in ("training", "eagle", "written"))


@pytest.fixture(scope="module")
def lm():
    torch.set_num_threads(1)
    with dflash.load("demo", device="cpu", context=512, sequences=4) as lm:
        yield lm


@pytest.fixture(scope="module")
def texts(lm):
    layers = written.eagle_config(lm).target_layer_ids
    return recording.record(lm, recording.write_texts(lm, recording.STARTS[:4], copies=1, max_tokens=32), layers)


@pytest.fixture(scope="module")
def teacher(lm, texts):
    return training.Teacher(texts, *recording.tables(lm))


def test_a_head_drafts_as_in_training(lm, texts, teacher, tmp_path):
    """Three draft tokens, of which the later ones are made from the head's own hidden states and keys."""
    net, text, n = training.untrained_eagle(written.eagle_config(lm)), texts[0], 12
    features = text.features[:n].astype(np.float32).reshape(n, -1)
    with (
        closing(load_eagle(lm.model, eagle.write_eagle(net, tmp_path / "head", 512))) as head,
        closing(head.state()) as state,
    ):
        found = head.propose([HeadRequest(state, text.tokens[1 : n + 1], features, 3, SampleParams(), n + 1, 8)])[0]
    whole = torch.from_numpy(np.concatenate([text.tokens[: n + 1], found.ids[:2, 0]])).long()
    with torch.no_grad():
        state = net.first(torch.from_numpy(np.pad(features, ((0, 2), (0, 0))))[None], None)
        passes = []
        for depth in range(3):
            state = net(teacher.embedding[whole[1:]][None], state, passes)
            scores = torch.log_softmax(state[0, n - 1 + depth] @ teacher.embedding.T, -1).numpy()
            assert_close(f"draft token {depth}", scores[found.ids[depth]], found.scores[depth], 2e-3)
            state = torch.nn.functional.pad(state[:, :-1], (0, 0, 1, 0))


def test_training_lowers_the_loss_and_changes_no_text(lm, texts, teacher, tmp_path):
    net = training.untrained_eagle(written.eagle_config(lm))
    losses = training.train_mtp(net, teacher, steps=12)
    assert np.mean(losses[-3:]) < 0.8 * np.mean(losses[:3])
    strategy = dflash.Strategy(dflash.Eagle3(str(eagle.write_eagle(net, tmp_path / "head", 512))), dflash.Chain(2))
    prompt = texts[0].tokens[: texts[0].prompt].tolist()
    plain, drafted = (lm.generate(prompt, strategy=each, max_tokens=24) for each in ("plain", strategy))
    assert drafted.tokens == plain.tokens
