"""Prompt sets in published layouts: files made here, with records of those layouts and texts of our own."""

import gzip
import json
import sys

import pytest

import dflash
from dflash.errors import DFlashError, NotFound, RequestError
from dflash.evaluation.prompt_layouts import LAYOUTS

N = 7


def turns(i):
    return {"question_id": f"q{i}", "category": ("coding", "math")[i % 2], "turns": [f"task {i}", f"more {i}"]}


def function(i):
    limits = {"type": "dict", "properties": {"low": {"type": "float"}, "pair": {"type": "tuple", "items": {"type": "any"}}}}
    return {"name": f"math.add{i}", "description": "Adds.", "parameters": limits}


RECORDS = {
    "humaneval": lambda i: {"task_id": f"Eval/{i}", "prompt": f"def task {i}", "entry_point": "f", "test": "assert True"},
    "mbpp": lambda i: {"task_id": i, "text": f"task {i}", "code": "x = 1", "test_list": [f"assert f() == {i}"]},
    "gsm8k": lambda i: {"question": f"task {i}", "answer": f"#### {i}"},
    "math-500": lambda i: {
        "problem": f"task {i}",
        "answer": "2",
        "subject": ("Algebra", "Geometry")[i % 2],
        "unique_id": f"u{i}",
    },
    "bfcl": lambda i: {
        "id": f"simple_python_{i}",
        "question": [[{"role": "user", "content": f"task {i}"}]],
        "function": [function(i)],
    },
    "sharegpt": lambda i: {"id": f"s{i}", "conversations": conversation(f"task {i}", f"more {i}")},
    "speed-bench": lambda i: {**turns(i), "sub_category": "x", "source": "own", "src_id": "0", "multiturn": True},
    "spec-bench": turns,
    "mt-bench": lambda i: {**turns(i), "question_id": i, "reference": ["a", "b"]},
}
CATEGORIES = {"humaneval": {"coding"}, "mbpp": {"coding"}, "gsm8k": {"math"}, "math-500": {"Algebra", "Geometry"}}
CATEGORIES |= {"bfcl": {"simple_python"}, "sharegpt": {"chat"}}


def conversation(*texts):
    return [
        {"from": "gpt", "value": "before"},
        *(one for text in texts for one in ({"from": "human", "value": text}, {"from": "gpt", "value": "ok"})),
    ]


def written(path, records):
    text = json.dumps(records) if ".json" in path.suffixes else "".join(json.dumps(each) + "\n" for each in records)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def text_of(case):
    return case.prompt if isinstance(case.prompt, str) else case.prompt[-1]["content"]


def test_every_layout_has_records_here():
    assert LAYOUTS.keys() == RECORDS.keys()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_is_read_by_name_and_by_its_fields_from_every_kind_of_file(tmp_path, layout):
    records = [RECORDS[layout](i) for i in range(N)]
    files = [written(tmp_path / f"set{end}", records) for end in (".jsonl", ".json", ".jsonl.gz", ".json.gz")]
    by_name = dflash.load_prompts(f"{layout}:{files[0]}")
    by_fields = [dflash.load_prompts(file) for file in files]
    assert [len(by_name), *map(len, by_fields)] == [N] * 5
    assert [case.category for case in by_name] == [case.category for case in by_fields[0]]
    for i, case in enumerate(by_name):
        assert f"task {i}" in text_of(case)
        for cases in by_fields:
            assert cases[i]._replace(name="") == case._replace(name="")
    assert {case.category for case in by_name} == CATEGORIES.get(layout, {"coding", "math"})
    if "turns" in records[0] or layout == "sharegpt":
        assert [case.later for case in by_name] == [(f"more {i}",) for i in range(N)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_error_names_file_record_and_field(tmp_path, layout):
    for field, kind in LAYOUTS[layout].fields.items():
        records = [RECORDS[layout](i) for i in range(N)]
        del records[3][field]
        for end, place in ((".jsonl", "line 4"), (".json", "line 1, item 4")):
            path = written(tmp_path / f"set{end}", records)
            with pytest.raises(RequestError) as caught:
                dflash.load_prompts(f"{layout}:{path}")
            assert str(caught.value).startswith(f"{path}, {place}: no field {field}; the record has ")
        records[3][field] = 5
        with pytest.raises(
            RequestError, match=rf"line 4: {field}: must be an? {'array' if kind is list else 'string'}, got 5"
        ):
            dflash.load_prompts(f"{layout}:{written(tmp_path / 'set.jsonl', records)}")


def test_a_sample_keeps_the_order_and_depends_on_its_seed_alone(tmp_path):
    path = written(tmp_path / "set.jsonl", [turns(i) for i in range(40)])
    whole = dflash.load_prompts(path)
    samples = [dflash.load_prompts(f"{path}:12@{seed}") for seed in range(5)]
    for seed, sample in enumerate(samples):
        places = [whole.index(case) for case in sample]
        assert len(places) == 12
        assert places == sorted(set(places))
        assert dflash.load_prompts(f"speed-bench:{path}:12@{seed}") == sample
    assert samples[0] == dflash.load_prompts(f"{path}:12")
    assert len({tuple(case.name for case in sample) for sample in samples}) == 5
    assert dflash.load_prompts(f"{path}:40@9") == whole
    with pytest.raises(RequestError, match="holds 40 prompts, fewer than 41"):
        dflash.load_prompts(f"{path}:41")


def test_bundled_sets_come_before_files_and_layouts_of_their_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent").write_text('{"prompt": "a"}')
    whole = dflash.load_prompts("agent")
    assert len(whole) > 3
    assert [case for case in whole if case in dflash.load_prompts("agent:3@1")] == dflash.load_prompts("agent:3@1")
    assert len(dflash.load_prompts("./agent")) == 1
    with pytest.raises(NotFound, match="bundled sets are"):
        dflash.load_prompts("")


def test_a_relative_name_is_looked_for_in_the_folder_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "studies").mkdir()
    written(tmp_path / "set.jsonl", [turns(i) for i in range(N)])
    assert len(dflash.load_prompts("mt-bench:set.jsonl", folder="studies")) == N
    written(tmp_path / "studies" / "set.jsonl", [turns(0)])
    for name in ("set.jsonl", "set.jsonl:1", "mt-bench:set.jsonl", tmp_path / "studies" / "set.jsonl"):
        assert len(dflash.load_prompts(name, folder="studies")) == 1


def test_categories_divide_a_set(tmp_path):
    path = written(tmp_path / "set.jsonl", [turns(i) for i in range(N)])
    parts = [dflash.load_prompts(f"spec-bench/{name}:{path}") for name in ("coding", "math")]
    assert [{case.category for case in part} for part in parts] == [{"coding"}, {"math"}]
    assert sorted(parts[0] + parts[1]) == sorted(dflash.load_prompts(path))
    assert len(dflash.load_prompts(f"spec-bench/math:{path}:2")) == 2
    with pytest.raises(NotFound, match=r"has no category 'maths' \(did you mean math\?\); it has coding, math"):
        dflash.load_prompts(f"spec-bench/maths:{path}")


@pytest.mark.parametrize(("name", "category"), [("code", "coding"), ("agent", "tools")])
def test_bundled_sets_have_a_category(name, category):
    assert {case.category for case in dflash.load_prompts(name)} == {category}


def test_functions_of_bfcl_become_tools_of_json_types(tmp_path):
    (case,) = dflash.load_prompts(written(tmp_path / "set.jsonl", [RECORDS["bfcl"](0)]))
    (tool,) = case.options["tools"]
    assert tool["function"]["name"] == "math_add0"
    parameters = tool["function"]["parameters"]
    kinds = [parameters["type"], *(each["type"] for each in parameters["properties"].values())]
    assert kinds == ["object", "number", "array"]
    assert parameters["properties"]["pair"]["items"] == {"type": "string"}


def test_a_conversation_without_a_question_is_left_out_and_a_system_text_is_kept(tmp_path):
    records = [
        {"conversations": conversation("first")},
        {"conversations": []},
        {"conversations": [{"from": "gpt", "value": "alone"}]},
        {"conversations": [{"from": "system", "value": "Be brief."}, *conversation("second")]},
    ]
    first, second = dflash.load_prompts(written(tmp_path / "set.json", records))
    assert [message["role"] for message in first.prompt] == ["user"]
    assert second.prompt == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "second"}]
    records[3]["conversations"][0] = {"from": "system"}
    with pytest.raises(RequestError, match="item 4: conversations: must hold objects with from and value"):
        dflash.load_prompts(written(tmp_path / "set.json", records))


def test_a_recorded_session_is_a_prompt_for_each_answer(tmp_path):
    roles = ["user", "assistant", "user", "assistant", "user"]
    path = written(tmp_path / "s.jsonl", [{"role": role, "content": f"text {i}"} for i, role in enumerate(roles)])
    cases = dflash.load_prompts(path)
    assert [len(case.prompt) for case in cases] == [1, 3, 5]
    assert {case.category for case in cases} == {"agent"}
    assert dflash.load_prompts(f"agent:{path}") == cases


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"id": "t", "block_size": 64, "requests": []}, "holds lengths without texts; `dflash bench --traces` replays"),
        (
            {**turns(0), "turns": ["FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"]},
            "line 1: turns: a text is not in",
        ),
        ({"code": "x", "test_list": [], "task_id": 1}, "line 1: no field text or prompt"),
        ({**RECORDS["bfcl"](0), "question": [[], []]}, "line 1: question: must hold the messages of one turn, got 2 turns"),
        (
            {**RECORDS["bfcl"](0), "function": [{"name": "f"}]},
            "line 1: function: must hold objects with name and parameters",
        ),
        ({"prompt": "a", "category": 5}, "line 1: category: must be a string, got 5"),
        ({"prompt": "a", "system": "Be brief."}, "line 1: prompt is text to continue, without system, tools"),
        ({"prompt": "a", "tools": [function(0)]}, "line 1: prompt is text to continue, without system, tools"),
    ],
)
def test_records_without_a_prompt_are_refused(tmp_path, record, message):
    with pytest.raises(RequestError, match=message):
        dflash.load_prompts(written(tmp_path / "set.jsonl", [record]))


def test_names_and_files_that_are_none(tmp_path):
    with pytest.raises(NotFound, match=r"no layout 'humanevl' \(did you mean humaneval\?\)"):
        dflash.load_prompts("humanevl:x.jsonl")
    with pytest.raises(NotFound, match="bundled sets are agent, code, copy, prose"):
        dflash.load_prompts(f"humaneval:{tmp_path / 'none.jsonl'}")
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(b"{}" * 99)[:-9])
    with pytest.raises(RequestError, match="not a valid gzip file"):
        dflash.load_prompts(tmp_path / "x.jsonl.gz")


def test_a_table_gives_the_same_prompts_as_lines(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    records = [RECORDS["speed-bench"](i) for i in range(N)]
    parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / "set.parquet")
    assert dflash.load_prompts(tmp_path / "set.parquet") == dflash.load_prompts(written(tmp_path / "set.jsonl", records))
    del records[2]["turns"]
    parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / "set.parquet")
    with pytest.raises(RequestError, match=r"set\.parquet, item 3: turns: must be an array, got None"):
        dflash.load_prompts(f"speed-bench:{tmp_path / 'set.parquet'}")
    (tmp_path / "set.parquet").write_bytes(b"PAR1 no table")
    with pytest.raises(RequestError, match="not a valid Parquet file"):
        dflash.load_prompts(tmp_path / "set.parquet")


def test_a_table_names_the_package_that_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DFlashError, match=r"reading Parquet needs pyarrow: pip install 'dflash-gguf\[parquet\]'$"):
        dflash.load_prompts(tmp_path / "set.parquet")
