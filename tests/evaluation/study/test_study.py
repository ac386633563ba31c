"""Studies of the demo: records, resuming, tables, differences, files."""

import csv
import io
import json
import sys
from dataclasses import replace

import pytest
from long_form import LONG

import dflash
from dflash.__main__ import main
from dflash.decode.registry import DRAFTERS
from dflash.errors import NotFound, RequestError
from dflash.evaluation.study import compare_records
from dflash.evaluation.study import run as module
from dflash.evaluation.study.plot import frontier
from dflash.evaluation.study.study_file import StudyFile

N = 2 if LONG else 1
CASES = [case._replace(name=f"{name} {case.name}") for name in ("code", "copy") for case in dflash.load_prompts(name)[:N]]
REJECTION = replace(dflash.Strategy.of("mtp:2"), verifier=dflash.RejectionSampling())
SYNTHETIC = replace(dflash.Strategy.of("lookup"), verifier=dflash.SyntheticAcceptance(1.5))
STRATEGIES = {"plain": "plain", "mtp:2": "mtp:2", "p / q": REJECTION}
GRID = {"temperatures": [0, 1], "seeds": 2, "batch": [1, 3], "max_tokens": 10}
TIMES = ("seconds", "tokens_per_second")


def without_times(value):
    if isinstance(value, dict):
        return {key: without_times(each) for key, each in value.items() if not any(time in key for time in TIMES)}
    return [without_times(each) for each in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def folder(lm, tmp_path_factory):
    """Records of one study."""
    at = tmp_path_factory.mktemp("study")
    dflash.study(lm, STRATEGIES, CASES, **GRID, folder=at)
    return at


def by_axes(study):
    return {tuple(record["cell"][axis] for axis in ("strategy", "temperature", "batch")): record for record in study.records}


def test_a_record_for_each_cell_says_what_was_measured(folder):
    found = dflash.Study.read(folder)
    assert len(found.records) == len(list(folder.glob("*"))) == 3 * 2 * 2
    for record in found.records:
        cell, n_seeds = record["cell"], 1 if record["cell"]["temperature"] == 0 else 2
        assert cell["seeds"] == list(range(n_seeds))
        assert len(record["requests"]) == n_seeds * len(CASES) == record["measures"]["requests"]
        assert len(record["setup"]["model"]["sha256"][0]) == 64
        assert all(sum(row["step_tokens"]) == row["tokens"] for row in record["requests"])
    assert by_axes(found)["p / q", 1, 1]["cell"]["verifier"] == "RejectionSampling()"


def test_acceptance_does_not_depend_on_the_batch(folder):
    found = by_axes(dflash.Study.read(folder))
    for (name, temperature, batch), record in found.items():
        if batch == 1:
            other = found[name, temperature, 3]
            assert without_times(record["requests"]) == without_times(other["requests"])
            assert without_times(record["measures"]) == without_times(other["measures"])


def test_at_temperature_0_p_over_q_accepts_what_coupled_does(folder):
    found = by_axes(dflash.Study.read(folder))
    assert without_times(found["mtp:2", 0, 1]["requests"]) == without_times(found["p / q", 0, 1]["requests"])


def test_rows_relate_speed_to_the_first_strategy(folder):
    rows = dflash.Study.read(folder).rows()
    for row in rows:
        assert row["acceptance_length"] / row["speed_up"] - 1 == pytest.approx(row["omega"])
        assert row["low"] <= row["acceptance_length"] <= row["high"]
        if row["strategy"] == "plain":
            assert (row["speed_up"], row["acceptance_length"]) == (1, 1)
    assert {row["guarantee"] for row in rows if row["strategy"] == "p / q"} == {"same", "distribution"}


def test_an_interrupted_study_continues(lm, folder, tmp_path, monkeypatch):
    measure, cells = module._measure, []

    def interrupted(*given, **more):
        cells.append(given[1])
        if len(cells) == 3:
            raise KeyboardInterrupt
        return measure(*given, **more)

    grid = {**GRID, "batch": [3]}
    monkeypatch.setattr(module, "_measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        dflash.study(lm, STRATEGIES, CASES, **grid, folder=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    found = dflash.study(lm, STRATEGIES, CASES, **grid, folder=tmp_path)
    assert len(cells) == 3 + 4
    assert cells[2] == cells[3]
    again, before = by_axes(found), by_axes(dflash.Study.read(folder))
    for axes, record in again.items():
        assert without_times(record["requests"]) == without_times(before[axes]["requests"])
    assert [record["number"] for record in found.records] == list(range(6))


def test_records_of_another_setting_are_refused(lm, folder):
    with pytest.raises(RequestError, match="was measured with another max_tokens; use another folder"):
        dflash.study(lm, STRATEGIES, CASES, **{**GRID, "max_tokens": 11}, folder=folder)
    with pytest.raises(RequestError, match="was measured with another prompts"):
        dflash.study(lm, STRATEGIES, CASES[:-1], **GRID, folder=folder)
    with pytest.raises(RequestError, match="was measured with another max_tokens"):
        dflash.study(lm, ["lookup"], CASES, batch=[2], max_tokens=11, folder=folder)  # no cell of the folder is its own


DRAFTER = """
from dataclasses import dataclass
from dflash.decode.drafters.prompt_lookup import PromptLookup
from dflash.decode.registry import register

@register("of-a-file", number="TOKENS", parameter="n_draft")
@dataclass(frozen=True)
class OfAFile(PromptLookup):
    pass
"""


@pytest.fixture
def drafter_file(tmp_path, monkeypatch):
    """A file with a drafter beside a study; the table of names is as before afterwards."""
    monkeypatch.setattr(DRAFTERS, "_entries", dict(DRAFTERS))
    path = tmp_path / "drafter_of_a_study.py"
    path.write_text(DRAFTER, encoding="utf-8")
    yield path
    sys.modules.pop(path.stem, None)


@pytest.mark.parametrize("in_file", [True, False])
def test_a_drafter_of_a_file_is_measured_until_the_file_changes(drafter_file, tmp_path, capsys, in_file):
    path = tmp_path / "study.toml"
    plugins = f"plugins = ['{drafter_file.name}']\n" if in_file else ""
    text = 'strategies = ["plain", "first(of-a-file:3, mtp:2)"]\nprompts = ["code"]\nprompts_of_each = 1\nmax_tokens = 4\n'
    path.write_text(f'{plugins}{text}folder = "records"\n[load]\nthreads = 1', encoding="utf-8")
    words = ["study", str(path), *([] if in_file else ["--plugin", str(drafter_file)])]
    assert main(words) == 0
    plain, drafted = dflash.Study.read(tmp_path / "records").records
    assert drafted["cell"]["code"].keys() - plain["cell"]["code"].keys() >= {drafter_file.stem, "dflash.decode.drafters.mtp"}
    assert main(words) == 0
    drafter_file.write_text(f"{DRAFTER}\nx = 1", encoding="utf-8")
    capsys.readouterr()
    assert main(words) == 1
    assert f"was measured with another file of {drafter_file.stem}; remove it" in " ".join(capsys.readouterr().err.split())


def test_an_interrupted_study_says_how_to_continue(tmp_path, capsys, monkeypatch):
    path = tmp_path / "study.toml"
    path.write_text('prompts_of_each = 1\nfolder = "records"\n[load]\nthreads = 1', encoding="utf-8")
    monkeypatch.setattr(module, "_measure", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    assert main(["study", str(path)]) == 130
    assert "interrupted; the same command continues" in capsys.readouterr().err


def test_equal_prompts_are_paired_whatever_their_names(folder, tmp_path):
    for path in folder.iterdir():
        record = json.loads(path.read_text(encoding="utf-8"))
        record["prompts"] = {f"other {name}": value for name, value in record["prompts"].items()}
        (tmp_path / path.name).write_text(json.dumps(record), encoding="utf-8")
    assert compare_records(folder, tmp_path).startswith("the set-ups are equal")
    assert "+0.00 [+0.00, +0.00]" in compare_records(folder, tmp_path)


def test_context_stands_before_text_messages_and_ids(lm):
    prompts = ["import os\n", [{"role": "user", "content": "Hi"}], [5, 6, 7]]
    cases = [module.Case(str(i), prompt) for i, prompt in enumerate(prompts)]
    found = dflash.study(lm, ["plain"], cases, context=[0, 300], max_tokens=2)
    short, long = ([row["prompt_tokens"] for row in record["requests"]] for record in found.records)
    for few, many in zip(short, long, strict=True):
        assert 290 <= many - few <= 310


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperatures": []}, "temperatures must hold different values"),
        ({"batch": [1, 1]}, "batch must hold different values"),
        ({"batch": [99]}, r"batch 99 exceeds the model's \d+ sequences"),
        ({"context": [-1]}, "context: must be a whole number"),
        ({"seeds": 0}, "seeds: must be a whole number of at least 1"),
        ({"temperature": 1}, "takes no temperature"),
    ],
)
def test_axes_are_checked(lm, given, message):
    with pytest.raises(RequestError, match=message):
        dflash.study(lm, ["plain"], CASES, **given)


def test_tables_hold_every_cell(folder):
    found = dflash.Study.read(folder)
    lines = found.table().splitlines()
    assert len(lines) == 2 + 12
    rows = list(csv.DictReader(io.StringIO(found.table("csv"))))
    assert [float(row["omega"]) for row in rows] == [row["omega"] for row in found.rows()]
    latex = found.table("latex")
    assert latex.count(r" \\") == 13
    assert latex.count("&") == 13 * 12
    assert r"\toprule" in latex
    assert found.table("pandas").shape == (12, len(found.rows()[0]))
    with pytest.raises(RequestError, match="kind must be markdown, latex, csv or pandas"):
        found.table("html")


def test_latex_is_escaped(lm):
    found = dflash.study(lm, {"a_b & 5%": "plain"}, CASES[:1], max_tokens=2)
    assert r"a\_b \& 5\% &" in found.table("latex")


def test_lossy_and_synthetic_cells_are_marked(lm):
    typical = replace(dflash.Strategy.of("mtp:2"), verifier=dflash.Typical())
    found = dflash.study(lm, {"t": typical, "s": SYNTHETIC}, CASES[:1], temperatures=[0, 1], max_tokens=6)
    assert [row["guarantee"] for row in found.rows()] == ["same", "synthetic", "lossy", "synthetic"]
    assert "is lossy" in repr(found)
    assert "the text is meaningless" in repr(found)


def test_plots_have_a_line_for_each_drafting_strategy_and_temperature(folder):
    found = dflash.Study.read(folder)
    positions, steps, speeds, pareto = found.plot().axes
    drawn = [[line for line in axes.lines if len(line.get_xdata())] for axes in (positions, steps, speeds, pareto)]
    assert [len(lines) for lines in drawn] == [4, 4, 6 + 1, 6 + 1]
    rates = {(row["strategy"], row["temperature"], row["batch"]): row["tokens_per_second"] for row in found.rows()}
    own = [rates["plain", 0, batch] for batch in (1, 3)]
    assert any(list(line.get_xdata()) == own and list(line.get_ydata()) == [own[0], 3 * own[1]] for line in pareto.lines)


def test_a_plot_of_one_kind_has_one_part(folder):
    found = dflash.Study.read(folder)
    assert [axes.get_title() for axes in found.plot("pareto", "steps").axes] == [
        "speed of one and of all, by batch",
        "tokens a step",
    ]
    assert len(found.plot("positions").axes) == 1
    with pytest.raises(RequestError, match="there are positions, steps, speed_up, pareto, got 'pareta'"):
        found.plot("pareta")


def test_no_cell_exceeds_those_of_the_frontier_in_both():
    points = [(1, 5), (2, 5), (3, 1), (2, 4), (3, 2), (0, 6), (0, 5)]
    assert list(frontier(points)) == [(3, 2), (2, 5), (0, 6)]


def test_a_record_says_how_fast_the_machine_was(folder):
    for record in dflash.Study.read(folder).records:
        machine = record["machine"]
        assert 1e8 < machine["copy_bytes_per_second"] < 1e14
        assert machine["clocks"] is None or 100 < machine["clocks"]["core_min_mhz"] <= machine["clocks"]["core_mhz"] < 1e4


def test_differences_name_the_set_up_first(folder, tmp_path):
    assert compare_records(folder, folder).startswith("the set-ups are equal")
    for path in folder.iterdir():
        record = json.loads(path.read_text(encoding="utf-8"))
        record["setup"]["cpu"] = {"processor": "another"}
        record["machine"]["copy_bytes_per_second"] *= 2
        for row in record["requests"]:
            row["decode_seconds"] /= 2
        (tmp_path / path.name).write_text(json.dumps(record), encoding="utf-8")
    found = compare_records(folder, tmp_path)
    lines = found.splitlines()
    assert lines[0] == "different set-ups:"
    assert "setup cpu processor" in found.partition("\n\n")[0]
    assert "copy bandwidth: " in found.partition("\n\n")[0]
    assert len([line for line in lines if "2.00 [2.00, 2.00]" in line]) == 12
    assert "+0.00 [+0.00, +0.00]" in found
    one, other = sorted(folder.iterdir())[:2]
    assert "cell" in compare_records(one, other)
    with pytest.raises(RequestError, match="is no record of a study"):
        (tmp_path / "x.json").write_text("[]", encoding="utf-8")
        compare_records(tmp_path / "x.json", one)
    with pytest.raises(NotFound):
        compare_records(tmp_path / "none.json", one)


TOML = """
strategies = [
    "plain",
    "mtp:2",
    {strategy = "mtp:2", verifier = "block"},
    {name = "at 2", strategy = "lookup", synthetic_acceptance = "2"},
]
prompts = ["code", "own.jsonl"]
prompts_of_each = 1
max_tokens = 4
folder = "records"
[sampling]
top_p = 0.9
[load]
threads = 1
"""


def test_a_file_is_a_study(tmp_path, capsys):
    path = tmp_path / "study.toml"
    path.write_text(TOML, encoding="utf-8")
    (tmp_path / "own.jsonl").write_text('{"prompt": "a b a b"}\n', encoding="utf-8")
    file = StudyFile.read(path)
    assert list(file.strategies) == ["plain", "mtp:2", "mtp:2, block", "at 2"]
    assert file.strategies["mtp:2, block"].verifier == dflash.BlockVerification()
    assert [case.prompt for case in file.prompts][1] == "a b a b"
    assert main(["study", str(path), "--table", "csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5
    assert len(list((tmp_path / "records").iterdir())) == 4
    assert main(["study", "compare", str(tmp_path / "records"), str(tmp_path / "records")]) == 0
    assert capsys.readouterr().out.startswith("the set-ups are equal")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("strategy = 1", "'strategy' is no key, there are model, load"),
        ("strategies = []", "strategies: must be a list of at least one"),
        ("strategies = [1]", "wanted names, or tables"),
        ('strategies = ["plain", "plain"]', "equal names"),
        ('strategies = [{strategy = "mtp", verifier = "x"}]', "verifier: wanted coupled"),
        ("x =", "not valid TOML"),
        ("[load]\nthread = 1", "load: 'thread' is no key"),
        ("sampling = 1", "sampling must be a table"),
        ("folder = 3", "folder must be a string"),
        ("temperatures = 1", "temperatures must hold different values"),
        ("prompts_of_each = 0", "prompts_of_each: must be a whole number"),
    ],
)
def test_a_file_that_is_wrong_says_where(tmp_path, capsys, text, message):
    path = tmp_path / "study.toml"
    path.write_text(text, encoding="utf-8")
    assert main(["study", str(path)]) == 1
    assert message in " ".join(capsys.readouterr().err.split())
