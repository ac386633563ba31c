"""A study of a server is that of the model in this process: the same outputs, the same acceptance, the same columns."""

import json
from dataclasses import replace

import pytest
from processes import address, process

import dflash
from dflash.__main__ import main
from dflash.errors import RequestError
from dflash.evaluation.prompt_sets import Case

SECONDS = ("seconds", "tokens_per_second")
SETTINGS = {"temperatures": [0, 1], "batch": [2], "context": [40], "max_tokens": 8}
SETS = ("code", "agent")
CASES = [case._replace(name=f"{name} {case.name}") for name in SETS for case in dflash.load_prompts(name)[:1]]
CASES += [Case("text", "import os\nimport"), Case("ids", [5, 6, 7, 5, 6])]


@pytest.fixture(scope="module")
def url():
    """Address of a server in a process of its own, which accepts by rejection sampling."""
    options = ("--port", "0", "--threads", "1", "--grace", "1", "--fixed-drafts", "--verifier", "rejection")
    with process("-m", "dflash.serve", "demo", "--device", "cpu", *options) as child:
        yield address(child)
        child.terminate()


def strategies_by(verifier):
    found = {name: replace(dflash.Strategy.of(name), verifier=verifier) for name in ("mtp:2",)}
    return {"plain": "plain", **found}


def without_seconds(values):
    return {name: value for name, value in values.items() if not any(part in name for part in SECONDS)}


@pytest.fixture(scope="module")
def served(url, tmp_path_factory):
    """A study of the server."""
    folder = tmp_path_factory.mktemp("served")
    dflash.study(url, strategies_by(dflash.RejectionSampling()), CASES, **SETTINGS, folder=folder)
    return folder


def test_it_gives_the_record_of_this_process(lm, served):
    local = dflash.study(lm, strategies_by(dflash.RejectionSampling()), CASES, **SETTINGS)
    records = dflash.Study.read(served).records
    assert len(records) == len(local.records) == 2 * 2
    for here, there in zip(local.records, records, strict=True):
        assert here.keys() == there.keys()
        assert here["cell"].keys() == there["cell"].keys()
        assert [*map(without_seconds, here["requests"])] == [*map(without_seconds, there["requests"])]
        assert without_seconds(here["measures"]) == without_seconds(there["measures"])
        assert here["setup"]["model"].keys() <= there["setup"]["model"].keys()


def test_what_the_server_does_not_say_is_none(served):
    record = dflash.Study.read(served).records[0]
    assert record["machine"] is record["cell"]["drafts"] is None
    assert record["setup"]["commit"] is record["setup"]["model"]["sha256"] is None
    assert record["setup"]["model"]["fingerprint"].startswith("fp_")
    assert record["setup"]["server"]["fixed_drafts"] is True
    assert record["setup"]["cpu"]["processor"]


def test_times_are_those_of_the_client(served):
    for record in dflash.Study.read(served).records:
        for row in record["requests"]:
            assert row["first_token_seconds"] > 0
            if row["steps"] > 1:
                assert row["decode_seconds"] > row["verify_seconds"] > 0


def test_strategies_that_the_server_can_not_take_are_refused(url):
    with pytest.raises(RequestError, match=r"accepts draft tokens by RejectionSampling\(\), the study wants Coupled\(\)"):
        dflash.study(url, ["mtp:2"], CASES[:1])
    with pytest.raises(RequestError, match="has no name that a request can carry"):
        dflash.study(url, [dflash.PromptLookup(min_ngram=2, max_ngram=3)], CASES[:1])
    with pytest.raises(RequestError, match=r"batch 9 exceeds the model's 8 sequences"):
        dflash.study(url, ["plain"], CASES[:1], batch=[9])


def test_a_file_is_a_study_of_a_server(url, tmp_path, capsys):
    path = tmp_path / "study.toml"
    path.write_text('strategies = ["plain"]\nprompts = ["copy"]\nprompts_of_each = 1\nmax_tokens = 4\nfolder = "r"')
    assert main(["study", str(path), "--url", url]) == 0
    assert "| plain" in capsys.readouterr().out
    (record,) = (tmp_path / "r").iterdir()
    assert json.loads(record.read_text(encoding="utf-8"))["setup"]["server"]["sequences"] == 8
    assert main(["study", str(path), "--url", "http://127.0.0.1:1"]) == 1
    assert main(["study", str(path), "--url", "ftp://x"]) == 1
    assert "must be an address as http://" in " ".join(capsys.readouterr().err.split())
