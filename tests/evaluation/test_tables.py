"""Data frames of a comparison, and the environment of a measurement."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

import dflash
from dflash.errors import DFlashError, RequestError
from dflash.evaluation import environment as module
from dflash.evaluation import tables

STRATEGIES = ["plain", "dflash", "lookup"]


@pytest.fixture(scope="module")
def found(lm):
    cases = dflash.load_prompts("copy")[:2]
    return dflash.compare(lm, cases, STRATEGIES, max_tokens=16, repeat=2)


def test_requests_stand_in_the_order_of_strategies_rounds_and_prompts(found):
    rows = list(tables.requests(found.rows, found.prompts))
    places = [(row["strategy"], row["round"], row["prompt"]) for row in rows]
    assert places == [(name, round_, prompt) for name in STRATEGIES for round_ in (0, 1) for prompt in found.prompts]
    for row, generation in zip(rows, [one for each in found.rows for one in each.generations], strict=True):
        assert row["tokens"] == len(generation.tokens)
        assert row["prompt_tokens"] == len(generation.prompt)
        assert row["acceptance"] == generation.acceptance
        assert row["same_text"] is True
        assert row["cached_tokens"] == 0


def test_another_text_is_marked(found, monkeypatch):
    last = found.rows[-1].generations[-1]
    monkeypatch.setattr(found.rows[-1], "generations", [*found.rows[-1].generations[:-1], found.rows[0].generations[0]])
    assert last.tokens != found.rows[0].generations[0].tokens
    assert [row["same_text"] for row in tables.requests(found.rows, found.prompts)] == [True] * 11 + [False]


def test_steps_add_up_to_their_requests(found):
    steps, sums = list(tables.steps(found.rows, found.prompts)), {}
    for step in steps:
        total = sums.setdefault((step["strategy"], step["round"], step["prompt"]), [0, 0, 0, 0])
        assert step["step"] == total[0]
        for i, value in enumerate((1, step["tokens"], step["drafted"], step["accepted"])):
            total[i] += value
    for row in tables.requests(found.rows, found.prompts):
        total = sums[row["strategy"], row["round"], row["prompt"]]
        assert total == [row["steps"], row["tokens"], row["drafted"], row["accepted"]]


def test_columns_are_those_that_are_documented(found):
    for kind, make in tables.KINDS.items():
        text = tables.__doc__.partition(f"{kind.title()}: ")[2].partition("\n\n")[0]
        first = next(iter(make(found.rows, found.prompts, found.categories)))
        shared = [] if kind == "categories" else ["strategy", "prompt", "round", "category"]
        assert shared + text.split("``")[1::2] == list(first)


def test_categories_add_up_to_the_whole(found):
    categories = ["coding", "writing"]
    rows = list(tables.by_category(found.rows, found.prompts, categories))
    assert [(row["category"], row["strategy"]) for row in rows] == [(one, name) for one in categories for name in STRATEGIES]
    for row in found.rows:
        own = [one for one in rows if one["strategy"] == row.name]
        for name, whole in (("drafted", row.drafted), ("accepted", row.accepted), ("requests", len(row.generations))):
            assert sum(one[name] for one in own) == whole
    text = repr(replace(found, categories=categories))
    assert [line.split()[1] for line in text.splitlines()[-2:]] == categories
    assert repr(found) == text.partition("\n\n")[0]


def test_data_frames_hold_the_measurements(found):
    pandas = pytest.importorskip("pandas")
    assert list(found.to_pandas().index) == STRATEGIES
    assert len(found.to_pandas("requests")) == 12
    assert set(found.to_pandas("categories").category) == {"copying"}
    steps = found.to_pandas("steps")
    assert isinstance(steps, pandas.DataFrame)
    assert steps.groupby("strategy").tokens.sum()["plain"] == found["plain"].tokens_per_step * len(
        steps.query("strategy == 'plain'")
    )


def test_rows_that_there_are_not_and_a_package_that_is_missing(found, monkeypatch):
    with pytest.raises(
        RequestError, match=r"one of strategies, requests, steps, categories, got 'step' \(did you mean steps\?\)"
    ):
        found.to_pandas("step")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(DFlashError, match=r"^to_pandas\(\) needs pandas: pip install"):
        found.to_pandas("steps")


def test_the_environment_is_json_and_a_block_of_lines(lm, monkeypatch):
    monkeypatch.setenv("DFLASH_MIN_TOKENS", "off")
    monkeypatch.setenv("DFLASH_API_KEY", "secret")
    about = dflash.environment(lm, fingerprint=True)
    assert json.loads(json.dumps(about)) == about
    text = str(about)
    assert text == repr(about)
    for words in ("python ", "cpu processor ", "cpu simd ", "packages numpy ", "model kv ", "model sha256 ", "no_gpu "):
        assert any(line.startswith(words) for line in text.splitlines()), words
    assert about["variables"]["DFLASH_MIN_TOKENS"] == "off"
    assert "secret" not in text
    assert len(about["model"]["sha256"][0]) == 64
    assert "sha256" not in dflash.environment(lm)["model"]
    assert "model" not in dflash.environment()


def test_the_commit_of_a_checkout(tmp_path, monkeypatch):
    def git(*words):
        names = "-c", "user.name=x", "-c", "user.email=x@example.com"
        return subprocess.run(
            ["git", "-C", tmp_path, *names, *words], check=True, capture_output=True, text=True
        ).stdout.strip()

    monkeypatch.setattr(module, "_ROOT", tmp_path)
    assert module._commit() is None
    git("init", "-q")
    assert module._commit() is None
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-qm", "first")
    assert module._commit() == git("rev-parse", "HEAD")
    (tmp_path / "a").write_text("2")
    assert module._commit() == git("rev-parse", "HEAD") + "+changes"
