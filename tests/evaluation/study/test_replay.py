"""Replay: recorded acceptance, with the prices of a few measured steps."""

import copy
import json

import pytest

import dflash
from dflash.evaluation.study import run as module
from dflash.evaluation.study.replay import acceptance_key, replay, source_of

CASES = [case._replace(name=f"{name} {case.name}") for name in ("code", "copy") for case in dflash.load_prompts(name)[:3]]
STRATEGIES = ["plain", "lookup"]
SETTINGS = {"temperatures": [0], "max_tokens": 8}


def row(depths, seconds, outside=1.0, **more):
    """A request whose steps have these depths and accept everything; all time is that of forwards."""
    inside = sum(seconds[1:])
    return {
        "step_depths": depths,
        "step_accepted": depths,
        "step_tokens": [1 + depth for depth in depths],
        "step_seconds": seconds,
        "first_token_seconds": 1.0,
        "decode_seconds": outside * inside,
        "tokens_per_second": 0.0,
        "forward_seconds": inside,
        "propose_seconds": 0.0,
        "verify_seconds": 0.0,
        **more,
    }


def test_steps_cost_what_measured_ones_of_their_depth_do():
    measured = [row([0, 1, 3], [9, 0.1, 0.3], outside=2), row([3, 1], [9, 0.3], outside=2, first_token_seconds=4.0)]
    (found,) = replay([row([3, 3, 2, 0], [0] * 4, mark="kept")], measured)
    one, three = 0.2, 0.3
    assert found["step_seconds"] == pytest.approx([three, three, (one + three) / 2, one])
    inside = three + (one + three) / 2 + one
    assert found["forward_seconds"] == pytest.approx(inside)
    assert found["decode_seconds"] == pytest.approx(2 * inside)
    assert found["tokens_per_second"] == pytest.approx((4 + 3 + 1) / (2 * inside))
    assert (found["first_token_seconds"], found["mark"]) == (2.5, "kept")


def test_a_request_of_one_step_takes_no_time_after_it():
    (found,) = replay([row([2], [9])], [row([2], [9])])
    assert (found["decode_seconds"], found["tokens_per_second"]) == (0, 0)


def by_axes(study):
    return {(record["cell"]["strategy"], record["cell"]["batch"]): record for record in study.records}


@pytest.fixture(scope="module")
def replayed(lm, tmp_path_factory):
    """A study of batches 1 and 2, the second one replayed, and the numbers of requests that each cell sent."""
    at, sent = tmp_path_factory.mktemp("replayed"), []

    class Counted(module.LocalRunner):
        def answer(self, cases, strategy, max_tokens, settings):
            sent.append(len(cases))
            return super().answer(cases, strategy, max_tokens, settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LocalRunner", Counted)
        dflash.study(lm, STRATEGIES, CASES, batch=[1, 2], **SETTINGS, replay=True, folder=at)
    return at, sent


def test_cells_that_differ_in_the_batch_share_their_acceptance(replayed):
    folder, sent = replayed
    assert sent == 2 * [1] * (1 + len(CASES)) + 2 * [2, 2]  # a warm-up each; the second batch runs one group
    found = by_axes(dflash.Study.read(folder))
    for name in STRATEGIES:
        full, other = found[name, 1], found[name, 2]
        assert "replayed" not in full
        assert other["replayed"]["priced_requests"] == 2
        assert other["replayed"]["acceptance_of"]["batch"] == 1
        for column in ("step_accepted", "step_depths", "output"):
            assert [each[column] for each in full["requests"]] == [each[column] for each in other["requests"]]
        assert other["measures"]["tokens_per_second"] > 0


def test_replayed_rows_are_marked_in_tables(replayed):
    study = dflash.Study.read(replayed[0])
    assert [row["replayed"] for row in study.rows()] == [False, False, True, True]
    assert study.table().count("same, replayed") == 2
    assert "replayed cells have recorded acceptance" in repr(study)
    assert "replayed" not in repr(dflash.Study(study.records[:2]))


def test_a_study_that_asks_for_none_measures_replayed_cells(lm, replayed, tmp_path):
    for path in replayed[0].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    found = dflash.study(lm, STRATEGIES, CASES, batch=[1, 2], **SETTINGS, folder=tmp_path)
    assert not any("replayed" in record for record in found.records)
    before = by_axes(dflash.Study.read(replayed[0]))
    for axes, record in by_axes(found).items():
        assert [row["output"] for row in record["requests"]] == [row["output"] for row in before[axes]["requests"]]


def test_another_folder_gives_the_acceptance(lm, replayed):
    found = dflash.study(lm, STRATEGIES, CASES, batch=[3], **SETTINGS, replay=replayed[0])
    assert all(record["replayed"]["priced_requests"] == 3 for record in found.records)
    other = dflash.study(lm, STRATEGIES, CASES[:3], batch=[3], **SETTINGS, replay=replayed[0])
    assert not any("replayed" in record for record in other.records)


def test_what_changes_acceptance_is_no_source(replayed):
    record = json.loads(next(replayed[0].iterdir()).read_text(encoding="utf-8"))
    record.pop("replayed", None)
    assert source_of(record, [record]) is record
    changes = {"temperature": 0.5, "verifier": "Typical()", "seeds": [0, 1], "context": 9, "code": {}}
    for name, value in changes.items():
        other = copy.deepcopy(record)
        other["cell"][name] = value
        assert source_of(other, [record]) is None
    faster = copy.deepcopy(record)
    faster["cell"]["batch"], faster["setup"]["model"]["threads"], faster["setup"]["cpu"] = 64, 96, {"processor": "another"}
    assert source_of(faster, [record]) is record
    unknown = copy.deepcopy(record)
    unknown["setup"]["model"]["sha256"] = None
    assert acceptance_key(unknown) is source_of(unknown, [record, unknown]) is None
