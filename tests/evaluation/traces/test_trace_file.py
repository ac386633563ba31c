"""Files of traces: what is read, and the error of a wrong one."""

import json

import pytest
from traces import GROWING, trace, traced, write

from dflash.errors import NotFound, RequestError
from dflash.evaluation.traces import load_traces


def test_files_of_a_folder(tmp_path):
    first, second = load_traces(write(tmp_path, trace(name="b"), trace(GROWING[:1], name="a")))
    assert (first.name, second.name) == ("b", "a")
    assert [one.n_prompt for one in first.requests] == [100, 160, 170, 90, 185]
    assert [one.think for one in first.requests] == [0, 4, 2, 1, 1]
    assert load_traces(tmp_path / "1.json") == [second]


def test_a_prompt_continues_the_longest_one_that_it_begins_with(tmp_path):
    again = traced(160, 1, range(10))
    (found,) = load_traces(write(tmp_path, trace([*GROWING, again])))
    assert [one.extends for one in found.requests] == [None, 0, 1, None, 2, 1]


def test_requests_of_subagents_stand_in_their_place(tmp_path):
    agent = {
        "type": "subagent",
        "t": 1.0,
        "agent_id": "a",
        "requests": [traced(40, 1, [50, 51]), traced(50, 1, [50, 51, 52])],
    }
    (found,) = load_traces(write(tmp_path, trace([GROWING[0], agent, GROWING[1]])))
    assert [one.n_prompt for one in found.requests] == [100, 40, 50, 160]
    assert [one.extends for one in found.requests] == [None, None, 1, 0]


def test_a_pause_without_its_field_is_the_time_since_the_last_answer(tmp_path):
    rows = [traced(40, 1, [1, 2], None, t=3.0, api_time=2.0), traced(40, 1, [1, 2], None, t=9.0)]
    (found,) = load_traces(write(tmp_path, trace(rows)))
    assert [one.think for one in found.requests[1:]] == [4]


def test_lengths_are_divided(tmp_path):
    (found,) = load_traces(write(tmp_path, trace()))
    small = found.scaled(8)
    assert small.block_size == 2
    assert [(one.n_prompt, one.n_output) for one in small.requests] == [(12, 2), (20, 4), (21, 1), (11, 1), (23, 1)]
    assert [one.n_prompt // 2 for one in small.requests] == [len(one.blocks) for one in found.requests]
    with pytest.raises(RequestError, match=r"scale: .*1, 2, 4, 8, 16; got 3"):
        found.scaled(3)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"block_size": 0}, "block_size: must be a whole number of at least 1, got 0"),
        ({"id": 5}, "id: must be a text, got 5"),
        ({"hash_id_scope": "world"}, "hash_id_scope: must be local or global, got 'world'"),
        ({"requests": None}, "requests: must be an array, got None"),
        ({"requests": []}, r"requests: must hold at least one request, got \[\]"),
        ({"requests": [GROWING[0], 7]}, r"requests\[1\] must be a JSON object, got 7"),
        ({"requests": [{**GROWING[0], "in": "100"}]}, r"requests\[0\].in: must be a whole number of at least 1, got '100'"),
        ({"requests": [{**GROWING[0], "hash_ids": [1]}]}, r"requests\[0\].hash_ids: must have 6 ids, .* got '1 ids'"),
        ({"requests": [{**GROWING[0], "hash_ids": "1"}]}, r"requests\[0\].hash_ids: must be an array of whole numbers"),
        ({"requests": [{**GROWING[0], "think_time": "2"}]}, r"requests\[0\].think_time: must be a number of seconds"),
        ({"requests": [{"type": "subagent", "requests": [{}]}]}, r"requests\[0\].requests\[0\].in: must be a whole number"),
    ],
)
def test_a_wrong_layout_names_file_and_field(changed, message, tmp_path):
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps({**trace(), **changed}))
    with pytest.raises(RequestError, match=rf"wrong\.json: {message}"):
        load_traces(path)


def test_files_that_hold_no_trace(tmp_path):
    for name in ("a.json", "a.json.xz"):
        (tmp_path / name).write_bytes(b"nothing")
        with pytest.raises(RequestError, match="is no JSON"):
            load_traces(tmp_path / name)
    with pytest.raises(NotFound, match="No such file"):
        load_traces(tmp_path / "gone.json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound, match=r"the folder has no \.json"):
        load_traces(tmp_path / "empty")
