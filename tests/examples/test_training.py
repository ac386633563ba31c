"""Training of drafts with torch: the networks compute what dflash runs, and training makes drafts that are accepted."""

from contextlib import closing
from functools import partial

import numpy as np
import pytest
import random_model
from compare import assert_close
from train_draft import gguf_files, recording

import dflash
from dflash.decode.drafting.shapes import Chain
from dflash.kernels.sample import SampleParams
from dflash.model.config import Config
from dflash.model.draft import DraftRequest, load_draft
from dflash.model.draft.config import DraftConfig
from dflash.model.gguf.file import GGUFFile
from dflash.model.loading.mtp import load_mtp
from dflash.model.model import Model
from dflash.model.recurrent_head import HeadRequest

torch = pytest.importorskip("torch")
run, training, studied, written = (
    pytest.importorskip(f"train_draft.{name}") for name in ("run", "training", "studied", "written")
)

LAYERS = 2, 4, 6


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def texts(lm):
    return recording.record(lm, recording.write_texts(lm, recording.STARTS[:4], copies=1, max_tokens=32), LAYERS)


@pytest.fixture(scope="module")
def teacher(lm, texts):
    return training.Teacher(texts, *recording.tables(lm))


def config(lm, windows=(0, 0)):
    return DraftConfig(
        kind="dflash", width=512, ffn=256, n_layers=2, heads=4, kv_heads=2, head_size=32, n_vocab=lm.model.n_vocab,
        norm_eps=1e-6, rope_base=1e4, rope_scaling=None, block=6, mask=lm.model.n_vocab - 1, target_layer_ids=LAYERS,
        windows=windows, causal=tuple(window > 0 for window in windows),
    )  # fmt: skip


@pytest.mark.parametrize("windows", [(0, 0), (4, 0), (0, 8)], ids=str)
def test_a_draft_computes_what_dflash_runs(lm, texts, teacher, tmp_path, windows):
    """Scores of the likeliest candidates after an anchor; the file holds halves, and dflash keeps keys in halves."""
    net, text, anchor = training.untrained_draft(config(lm, windows)), texts[0], 9
    path = gguf_files.write_draft(tmp_path / "a.gguf", net.config, training.weights_of(net))
    draft = load_draft(path, lm.model, sequences=1)
    with closing(draft), closing(draft.state()) as state:
        features = {layer: text.features[:anchor, i].astype(np.float32) for i, layer in enumerate(LAYERS)}
        draft.read(state, features, slice(0, anchor))
        found = draft.propose([DraftRequest(state, int(text.tokens[anchor]), 5, SampleParams(), 8)])[0]
    ids = np.array([text.tokens[anchor], *[net.config.mask] * 5], np.int64)
    with torch.no_grad():
        hidden = net(
            torch.from_numpy(text.features[None].astype(np.float32)).flatten(2),
            torch.tensor([[anchor]]),
            teacher.embedding[torch.from_numpy(ids)][None, None],
        )[0, 0, 1:]
        scores = torch.log_softmax(hidden @ teacher.embedding.T, -1).numpy()
    assert np.ptp(found.scores, axis=1).min() > 0.01
    assert_close("scores", np.take_along_axis(scores, found.ids, axis=1), found.scores, 1e-3)


def weights_of_block(lm):
    """Float32 weights of the demo's own head, by their names in the block."""
    block, n = f"blk.{lm.model.config.n_layers}.", lm.model.config.n_layers
    tensors, weights = lm.file.tensors, lm.model.weights.block(n)
    names = [name.removeprefix(block) for name in tensors if name.startswith(block)]
    return {
        name: weights.vector(name) if len(tensors[block + name].shape) == 1 else weights.matrix(name).unpacked()
        for name in names
    }


def test_a_head_computes_what_dflash_runs(lm, texts, teacher):
    """With the weights of the demo's own head; the first draft token after each of some lengths of a text."""
    net, text = training.untrained_mtp(lm.model.config), texts[0]
    mine, given = dict(net.named_parameters()), weights_of_block(lm)
    assert training.weights_of(net).keys() == given.keys()
    with torch.no_grad():
        for name, parameter in zip(training.weights_of(net), mine.values(), strict=True):
            parameter.copy_(torch.from_numpy(given[name]))
        hidden = net(
            teacher.embedding[torch.from_numpy(text.tokens[1:]).long()][None],
            torch.from_numpy(text.hidden[:-1].astype(np.float32))[None],
        )[0]
        scores = torch.log_softmax(hidden @ teacher.embedding.T, -1).numpy()
    with closing(load_mtp(lm.model)) as head:
        for n in (1, 7, len(text.tokens) - 1):
            with closing(head.state()) as state:
                tokens, trunk = text.tokens[1 : n + 1], text.hidden[:n].astype(np.float32)
                found = head.propose([HeadRequest(state, tokens, trunk, 1, SampleParams(), n + 1, 8)])[0]
            assert_close(f"after {n}", scores[n - 1][found.ids[0]], found.scores[0], 5e-3)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_heads_of_architectures_draft_as_in_training(architecture, tmp_path):
    """Three draft tokens, of which the later ones are made from the head's own hidden states and keys."""
    sizes = {"embedding_length": 64, "feed_forward_length": 96, "attention.head_count": 4, "attention.head_count_kv": 2}
    sizes |= {"block_count": 1, "context_length": 256, "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 1e5}
    sizes |= {"attention.key_length": 16, "attention.value_length": 16}
    path, n_vocab, n = tmp_path / "model.gguf", 300, 9
    random_model.write(path, architecture, n_vocab, sizes, "F16")
    tokens = np.random.default_rng(1).integers(0, n_vocab, n + 1).astype(np.int32)
    hidden = np.random.default_rng(2).standard_normal((n, 64), np.float32)
    with GGUFFile.open(path) as file:
        config = Config.from_gguf(file.metadata, file.tensors)
        net = training.untrained_mtp(config)
        model = Model(file, config, pages=4, slots=2, kv="f32", threads=1, rows=16)
        written = gguf_files.write_mtp(tmp_path / "head.gguf", path, training.weights_of(net), kind="F32")
        with closing(load_mtp(model, written)) as head, closing(head.state()) as state:
            found = head.propose([HeadRequest(state, tokens[1:], hidden, 3, SampleParams(), n + 1, 8)])[0]
        table = torch.from_numpy(model.weights.matrix("token_embd.weight").unpacked())
        output = torch.from_numpy(model.weights.matrix("output.weight").unpacked()) if not config.tied else table
    whole = torch.from_numpy(np.concatenate([tokens, found.ids[:2, 0]])).long()
    state, passes = torch.cat([torch.from_numpy(hidden), torch.zeros(2, 64)])[None], []
    for depth in range(3):
        with torch.no_grad():
            state = net(table[whole[1:]][None], state, passes)
            scores = torch.log_softmax(state[0, n - 1 + depth] @ output.T, -1).numpy()
            state = torch.nn.functional.pad(state[:, :-1], (0, 0, 1, 0))
        assert_close(f"draft token {depth}", scores[found.ids[depth]], found.scores[depth], 1e-3)


def test_training_makes_a_head_that_is_accepted(lm, texts, teacher, tmp_path, pools):
    """On texts that it was trained with; an untrained head drafts noise."""
    net, accepted = training.untrained_mtp(lm.model.config), []
    losses = []
    for steps in (0, 14):
        losses += training.train_mtp(net, teacher, steps=steps) if steps else []
        path = gguf_files.write_mtp(tmp_path / f"{steps}.gguf", lm.file.path, training.weights_of(net))
        strategy = dflash.Strategy(dflash.MTP(file=str(path)), Chain(1))
        done = lm.generate(list(recording.STARTS[:4]), strategy=strategy, max_tokens=32)
        accepted.append(sum(step.accepted for each in done for step in each.steps))
    assert losses[-1] < losses[0] / 3
    assert accepted[0] < 10
    assert accepted[1] > accepted[0] + 20


def test_training_lowers_the_loss_of_a_draft(lm, teacher):
    losses = training.train_draft(training.untrained_draft(config(lm)), teacher, steps=12)
    assert np.mean(losses[-3:]) < 0.8 * losses[0]


def test_training_continues_from_its_checkpoint(lm, teacher, tmp_path):
    """It ends at the limit of steps together, and both nets end with the same bits."""
    nets = [training.untrained_draft(config(lm)) for _ in range(2)]
    limits = {"steps": 4, "file": tmp_path / "draft"}
    assert len(training.train_draft(nets[0], teacher, **limits)) == 4
    assert training.train_draft(nets[1], teacher, **limits) == []
    for one, other in zip(*(net.parameters() for net in nets), strict=True):
        assert torch.equal(one, other)
    assert len(training.train_draft(nets[1], teacher, steps=6, file=tmp_path / "draft")) == 2
    assert training.train_draft(nets[1], teacher, seconds=1e-9) == []
    assert training.train_draft(nets[1], teacher, until=0.0) == [], "a part that is over"


def test_the_log_estimates_tokens_per_step(lm, texts, tmp_path, monkeypatch):
    """With every text held out too, a draft that knows the answers gets whole blocks."""
    monkeypatch.setattr(run, "EVERY", 2)
    monkeypatch.setattr(training, "HELD_OUT", 2)
    teacher = training.Teacher(texts, *recording.tables(lm))
    for name, net, train in (
        ("draft", training.untrained_draft(config(lm)), training.train_draft),
        ("head", training.untrained_mtp(lm.model.config), training.train_mtp),
    ):
        train(net, teacher, steps=4, file=tmp_path / name)
        head, *lines = (tmp_path / f"{name}.csv").read_text().splitlines()
        assert head == "step,seconds,rate,loss,held_out_tokens_per_step"
        assert [line.split(",")[0] for line in lines] == ["2", "4"]
        assert all(1 <= float(line.split(",")[-1]) < 6 for line in lines)
    hidden, weights = torch.randn(2, 3, 4, 512), torch.ones(2, 3, 4)
    weights[0, 0, 1:] = weights[1, 1] = 0
    assert teacher.tokens_per_step(hidden, hidden, weights) == pytest.approx(1 + (1 + 4 * 4) / 5)


def test_prompts_are_not_trained(lm, texts, teacher):
    """No block begins in a prompt, and a head's prediction of a prompt's token has no weight."""
    for _ in range(20):
        some = next(teacher.batches())
        anchors, prompts, lengths = teacher.anchors(*some[1:3]), some[1][:, None], some[2][:, None]
        assert ((anchors >= prompts) & (anchors < lengths - 1)).all()


def test_a_study_every_few_steps_measures_the_draft_as_it_is(lm, teacher, tmp_path, pools):
    """A line for each study; the files and the loaded drafts are gone, and acceptance is that of the weights of its step."""
    head = training.untrained_mtp(lm.model.config)
    write = partial(written.written_chain, lm, head, tmp_path)
    study, n_attached = studied.studied(lm, write, tmp_path / "head", prompts=2, max_tokens=12), len(lm.model.attachments)
    steps = []
    training.train_mtp(head, teacher, steps=5, study_every=2, study=lambda step: steps.append(step) or study(step))
    assert steps == [2, 4]
    with torch.no_grad():
        for name, parameter in zip(training.weights_of(head), head.parameters(), strict=True):
            parameter.copy_(torch.from_numpy(weights_of_block(lm)[name]))
    study(9)
    names, *lines = (tmp_path / "head-study.csv").read_text().splitlines()
    assert names == "step,acceptance_length,low,high,acceptance_by_position"
    found = {int(line.split(",")[0]): float(line.split(",")[1]) for line in lines}
    assert list(found) == [2, 4, 9]
    assert found[9] > found[2] + 1
    assert [path.name for path in tmp_path.iterdir()] == ["head-study.csv"]
    assert len(lm.model.attachments) == n_attached
