"""Recording of hidden states."""

import numpy as np
import pytest

import dflash
from dflash.__main__ import main
from dflash.errors import FormatError, NotFound, RequestError
from dflash.evaluation.features import recorded
from dflash.model.draft.files.safetensors import SafeTensors

PROMPTS = ["def gcd(a, b):", "import os\nimport", "The server reads"]
LAYERS = (1, 3, 5)
OTHERS = {"max_tokens": 7, "temperature": 1, "layers": [1], "dtype": "f16"}


def capture(lm, folder, prompts=PROMPTS, layers=LAYERS, **given):
    return dflash.capture(
        lm, prompts, layers, folder=folder, **{"max_bytes": 1 << 24, "max_tokens": 6, "dtype": "f32", **given}
    )


def size_of(folder):
    return sum(path.stat().st_size for path in folder.iterdir())


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_records_hold_the_output_and_the_bits_of_hidden_states(lm, tmp_path):
    layers = (*LAYERS, lm.model.config.n_layers)
    found = capture(lm, tmp_path, layers=layers)
    records = recorded(tmp_path)
    assert (found.texts, found.complete, found.n_bytes) == (3, True, size_of(tmp_path))
    assert found.tokens == sum(len(record.tokens) for record in records)
    for record, prompt in zip(records, PROMPTS, strict=True):
        generation = lm.generate(prompt, max_tokens=6, temperature=0)
        assert record.tokens.tolist() == [*generation.prompt, *generation.tokens]
        assert record.n_prompt == len(generation.prompt)
        states = lm.hidden_states(record.tokens.tolist(), layers)
        assert record.features.keys() == states.keys() == set(layers)
        for layer, values in states.items():
            assert np.array_equal(record.features[layer], values)


def test_the_layer_after_the_last_is_the_output_of_the_last_norm(lm):
    n = lm.model.config.n_layers
    states = lm.hidden_states("def gcd(a, b):\n    return", [n - 1, n])
    rms = np.sqrt((states[n - 1].astype(float) ** 2).mean(1, keepdims=True))
    scale = states[n] * rms / states[n - 1]
    large = abs(states[n - 1]) > 0.05 * rms
    for column, use in zip(scale.T, large.T, strict=True):
        assert np.ptp(column[use]) < 1e-3 * abs(column).max() + 1e-4 if use.any() else True
    assert np.array_equal(lm.hidden_states("def gcd(a, b):\n    return", n)[n], states[n])
    with pytest.raises(RequestError, match=f"0 to {n}"):
        lm.hidden_states("def", n + 1)


def test_halves_are_the_same_values_rounded(lm, tmp_path):
    capture(lm, tmp_path / "f32")
    capture(lm, tmp_path / "f16", dtype="f16")
    for exact, half in zip(recorded(tmp_path / "f32"), recorded(tmp_path / "f16"), strict=True):
        for layer in LAYERS:
            assert half.features[layer].dtype == np.float16
            assert np.array_equal(half.features[layer], exact.features[layer].astype(np.float16))


def test_an_interrupted_recording_continues_with_the_missing_files(lm, tmp_path):
    capture(lm, tmp_path)
    before, times = content(tmp_path), {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    gone = sorted(before)[1]
    (tmp_path / gone).unlink()
    (tmp_path / gone).with_suffix(".part").write_bytes(b"half a file")
    assert capture(lm, tmp_path).complete
    assert content(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir() if path.stat().st_mtime_ns != times[path.name]] == [gone]


def test_the_folder_never_exceeds_its_bytes(lm, tmp_path):
    whole = capture(lm, tmp_path / "whole")
    texts = []
    for n_bytes in range(0, whole.n_bytes + 8000, whole.n_bytes // 7):
        found = capture(lm, tmp_path / "part", max_bytes=n_bytes)
        assert size_of(tmp_path / "part") == found.n_bytes <= n_bytes
        assert found.complete == (found.texts == 3)
        assert len(list((tmp_path / "part").iterdir())) == found.texts
        texts.append(found.texts)
    assert texts == sorted(texts)
    assert {0, 1, 2} <= set(texts)
    assert capture(lm, tmp_path / "part", max_bytes=2 * whole.n_bytes + 8000).complete
    assert content(tmp_path / "part") == content(tmp_path / "whole")


def test_texts_of_a_folder_are_read_again(lm, tmp_path):
    capture(lm, tmp_path / "first", prompts=dflash.load_prompts("agent:2"))
    capture(lm, tmp_path / "again", prompts=tmp_path / "first", layers=[0], max_tokens=0)
    for first, again in zip(recorded(tmp_path / "first"), recorded(tmp_path / "again"), strict=True):
        assert np.array_equal(first.tokens, again.tokens)
        assert again.features.keys() == {0}
        assert (first.n_prompt, first.name, first.category) == (again.n_prompt, again.name, "tools")


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        *(({name: value}, "setting") for name, value in OTHERS.items()),
        *(({"prompts": prompts}, "text") for prompts in (PROMPTS[1:], [PROMPTS[0][:-1]])),
    ],
)
def test_a_folder_of_other_records_is_refused(lm, tmp_path, changed, what):
    capture(lm, tmp_path, prompts=PROMPTS[:1])
    before = content(tmp_path)
    with pytest.raises(RequestError, match=f"000000.safetensors: was recorded with another {what}"):
        capture(lm, tmp_path, **{"prompts": PROMPTS[:1], **changed})
    assert content(tmp_path) == before


def test_strategies_name_the_layers_that_their_drafts_read(lm, tmp_path):
    for strategy, layers in (("dflash", LAYERS), ("mtp:2", (lm.model.config.n_layers,)), (2, (2,))):
        folder = tmp_path / str(strategy).replace(":", "")
        capture(lm, folder, prompts=["a"], layers=strategy, max_tokens=0)
        assert tuple(recorded(folder)[0].features) == layers
    with pytest.raises(RequestError, match=r"Plain\(\) reads no hidden states"):
        capture(lm, tmp_path / "none", layers="plain")
    with pytest.raises(RequestError, match="dtype: must be one of f16, f32, got 'f8'"):
        capture(lm, tmp_path / "none", dtype="f8")


def test_damaged_and_other_files_are_refused(lm, tmp_path):
    with pytest.raises(NotFound, match="holds no recorded features"):
        recorded(tmp_path)
    capture(lm, tmp_path, prompts=["a b c"])
    path = tmp_path / "000000.safetensors"
    sound = path.read_bytes()
    for damaged in (
        sound[:-4],
        sound.replace(b"dflash-features-1", b"dflash-features-0"),
        sound.replace(b"layer.3", b"layer.x"),
        sound.replace(b'"I32"', b'"F32"'),
        sound.replace(b"tokens", b"tokenz"),
    ):
        assert damaged != sound
        path.write_bytes(damaged)
        with pytest.raises(FormatError):
            recorded(tmp_path)
    path.write_bytes(sound)
    assert SafeTensors.open(path).tensors["layer.3"].type == "F32"
    assert recorded(tmp_path)[0].n_prompt > 0


def test_the_command_records(lm, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(lm, "_finalizer", lambda: None)
    monkeypatch.setattr("dflash.load", lambda *_, **__: lm)
    words = ["capture", "demo", "--folder", str(tmp_path / "a"), "--layers", "1,3", "--prompts", "code:1,agent:1", "-n", "3"]
    assert main(words) == 0
    assert "2 texts" in capsys.readouterr().out
    assert [tuple(record.features) for record in recorded(tmp_path / "a")] == [(1, 3)] * 2
    again = ["capture", "demo", "--folder", str(tmp_path / "b"), "--texts", str(tmp_path / "a"), "--max-bytes", "1K"]
    assert main(again) == 0
    assert "0 texts, 0 tokens, 0 B; the next text exceeds --max-bytes" in capsys.readouterr().out
    assert main([*again, "--prompts", "code"]) == 1
    assert "--texts and --prompts: give one of them" in capsys.readouterr().err
