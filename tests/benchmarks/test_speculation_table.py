"""The table of speed by acceptance length, on the demo: no prefill, the wanted acceptance, and parts that continue."""

import json
import sys
from pathlib import Path

import pytest

import dflash
from dflash.decode.drafters.mtp import MTP
from dflash.errors import OutOfMemory

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import speculation_table

DATA = Path(dflash.__file__).parent / "data"
WORDS = [str(DATA / "demo-Q4_K_M.gguf"), "--preset", "tiny", "--draft", str(DATA / "draft-Q4_K_M.gguf"), "--device", "cpu"]
N_CELLS = 2 * (1 + 1 + 2)


def run(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["speculation_table.py", *words])
    speculation_table.main()


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """File of a run that was killed in its third line and continued, and the cells that each of two parts measured."""
    path, cells, measure = tmp_path_factory.mktemp("table") / "cells.jsonl", [], speculation_table.measure

    def counted(contexts, strategy, *given):
        if len(cells) == 2:
            cells.append(None)
            path.write_text(path.read_text() + '{"file": "de')
            raise KeyboardInterrupt
        cells.append(strategy)
        return measure(contexts, strategy, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speculation_table, "measure", counted)
        with pytest.raises(KeyboardInterrupt):
            run(patch, *WORDS, "--steps", "4", "--out", str(path))
        run(patch, *WORDS, "--steps", "4", "--out", str(path))
    return path, cells


def test_a_killed_run_continues(measured, monkeypatch, capsys):
    path, cells = measured
    assert len(cells) == 1 + N_CELLS
    assert len(speculation_table._lines(path)) == N_CELLS
    run(monkeypatch, *WORDS, "--out", str(path))
    assert f"holds all {N_CELLS} cells" in capsys.readouterr().out


def test_a_run_ends_when_its_time_is_over(tmp_path, monkeypatch, capsys):
    run(monkeypatch, *WORDS, "--out", str(tmp_path / "x.jsonl"), "--seconds", "0")
    assert f"time is over: {N_CELLS} of {N_CELLS} cells are left" in capsys.readouterr().out


def test_a_cell_that_fails_is_left_out_and_frees_what_it_took(tmp_path, monkeypatch, capsys):
    """The pages of its sequences are there for the next cells, which run."""
    path, models, propose = tmp_path / "x.jsonl", [], MTP.propose

    def fail(self, states, most):
        models.append(states[0].draft_model)
        if len(models) == 2:
            raise OutOfMemory("none left")
        return propose(self, states, most)

    monkeypatch.setattr(MTP, "propose", fail)
    run(monkeypatch, *WORDS[:3], "--device", "cpu", "--steps", "2", "--out", str(path))
    assert "mtp:3 synthetic acceptance 2 (assumed) 1 x 512: none left" in capsys.readouterr().out
    assert [line["strategy"] for line in speculation_table._lines(path)] == ["plain", "plain", "mtp:3"]
    assert models[0].pools.free_slots == models[0].pools.slots


def test_sequences_have_the_wanted_acceptance_and_rows(measured):
    for line in speculation_table._lines(measured[0]):
        depth = int(line["strategy"].partition(":")[2] or 0)
        assert line["rows"] == line["sequences"] * (1 + depth)
        assert line["tokens_a_step"] == pytest.approx(line["acceptance_length"], abs=0.51)
        assert line["source"] == ("assumed" if depth else "plain")


def test_contexts_are_read_by_no_forward():
    loaded = speculation_table.load_model(WORDS[0], speculation_table.LoadSettings(device="cpu", context=1024, sequences=2))
    contexts, forwards = speculation_table.Contexts(loaded.model), []
    k, _ = loaded.model.pools.caches[0]
    assert (k[:, 0] == k[:, 1]).all()
    assert k[:, 0].any()
    forward = loaded.model.forward
    loaded.model.forward = lambda spans, **more: forwards.extend(spans) or forward(spans, **more)
    _, (name, strategy), *_ = speculation_table.strategies("tiny", None)
    found = speculation_table.measure(contexts, strategy, 512, 2, 2)
    assert (name, strategy.drafter) == ("mtp:3", MTP())
    assert max(len(span.tokens) for span in forwards) == 4
    assert found["rows"] == 8
    pools = loaded.model.pools
    assert (pools.free_slots, pools.free_pages) == (pools.slots, pools.pages)


def test_the_parts_of_omega_add_up(measured, monkeypatch, capsys):
    run(monkeypatch, "--table", str(measured[0]))
    name, _, *lines = capsys.readouterr().out.splitlines()
    assert name == "cells"
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert len(rows) == N_CELLS
    for row in rows:
        values = dict(zip(head, row, strict=True))
        omega, *parts = (float(values[name]) for name in ("Omega", "draft", "rows", "host"))
        assert sum(parts) == pytest.approx(omega, abs=0.03)
        assert float(values["×"]) * (1 + omega) == pytest.approx(float(values["length"]), abs=0.03 + 0.006 * (1 + omega))
    assert all(json.loads(line) for line in measured[0].read_text().splitlines() if line.endswith("}"))
