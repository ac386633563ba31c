"""The comparison of likelihoods reads what `llama-perplexity` writes."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import beside_llama

N_CONTEXT, N_VOCAB, N_WINDOWS = 16, 31, 3


def written(logits):
    """A row of the file: scale and least log-probability as float32, and steps of 16 bits, padded to an even number."""
    logp = beside_llama.log_softmax(logits)
    least = max(logp.min(), logp.max() - 16)
    scale = np.float32((logp.max() - least) / 65535)
    steps = np.clip(np.rint((logp - least) / scale), 0, 65535).astype(np.uint16)
    return np.concatenate([np.array([scale, least], np.float32).view(np.uint16), steps, np.zeros(N_VOCAB % 2, np.uint16)])


@pytest.fixture
def recording(tmp_path):
    random = np.random.default_rng(1)
    ids = random.integers(0, N_VOCAB, (N_WINDOWS, N_CONTEXT)).astype(np.int32)
    logits = {
        tuple(window[:-1]): random.normal(0, 9, (N_CONTEXT - 1, N_VOCAB)).astype(np.float32) for window in ids.tolist()
    }
    path = tmp_path / "logits"
    with path.open("wb") as file:
        file.write(b"_logits_")
        np.array([N_CONTEXT, N_VOCAB, N_WINDOWS], np.int32).tofile(file)
        ids.tofile(file)
        for window in logits.values():
            for row in window[N_CONTEXT // 2 :]:
                written(row).tofile(file)
    return path, SimpleNamespace(logits=lambda window: logits[tuple(window)])


def test_equal_models_agree(recording, capsys):
    path, lm = recording
    ids, rows, n_vocab = beside_llama.recorded(path)
    assert (n_vocab, ids.shape, rows.shape[:2]) == (N_VOCAB, (3, 16), (3, 7))
    ours, theirs, same, kl = beside_llama.compare(lm, ids, rows, n_vocab, block=4)
    assert ours.shape == (21,)
    assert np.abs(ours - theirs)[theirs < 15].max() < 1e-3
    assert same.all()
    assert np.abs(kl).max() < 1e-3
    assert "window 3" in capsys.readouterr().out


def test_another_model_differs(recording):
    path, lm = recording
    *_, same, kl = beside_llama.compare(
        SimpleNamespace(logits=lambda window: -lm.logits(window)), *beside_llama.recorded(path)
    )
    assert not same.any()
    assert kl.min() > 1


def test_a_file_that_was_stopped_has_fewer_windows(recording):
    path, _ = recording
    path.write_bytes(path.read_bytes()[:-1])
    ids, rows, _ = beside_llama.recorded(path)
    assert len(ids) == len(rows) == 2
