"""The rules by which answers of agent turns are counted."""

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import turn_kinds

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "limit": {"type": "integer", "minimum": 1}},
                "required": ["path"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "ls"}},
]
WORDS = "sum", "mean", "least", "best", "all"
LIST = "\n".join(f"{i}. The function `f{i * 37}` returns the {word}." for i, word in enumerate(WORDS))


def record(text="", *calls, finish="stop", content=None):
    return {
        "text": text,
        "content": text if content is None else content,
        "calls": [{"name": name, "arguments": arguments} for name, arguments in calls],
        "finish": finish,
    }


def written(arguments, name="read", **more):
    return json.dumps({"name": name, "arguments": arguments, **more})


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (record("", ("read", '{"path": "a"}')), "valid"),
        (record("Let me look:\n", ("read", '{"path": "a"}'), ("ls", "{}")), "valid"),
        (record("", ("read", '{"path": "a", "limit": 0}')), "invalid minimum"),
        (record("", ("read", '{"path": "a"}'), ("read", "{}")), "invalid required"),
        (record("", ("read", '{"path": ')), "invalid no JSON"),
        (record("", ("read", '["a"]')), "invalid no object"),
        (record("", ("write", "{}")), "invalid function"),
        (record("", *[("ls", "{}")] * 5, finish="tool_calls"), "loops"),
        (record("", *[("ls", "{}")] * 4), "valid"),
        (record("The same line again.\n" * 90, finish="length"), "loops"),
        (record("The same line again.\n" * 90), "answer"),
        (record(LIST, finish="length"), "cut"),
        (record('{"name": "read", "arguments": {"path": ', finish="length"), "cut"),
        (record(""), "empty"),
        (record(" \n\n"), "empty"),
        (record(f"I use:\n{written({'path': 'a'})}\nThis reads it."), "leaked"),
        (record(f"```json\n{written({'path': 'a'})}\n```\nand\n```json\n{written({'name': 'a'})}\n```"), "leaked"),
        (record(f"```json\n{written({'file': 'a'})}\n```"), "invalid required"),
        (record(f"```json\n{written({'path': 'a', 'to': 1})}\n```"), "invalid additionalProperties"),
        (record(written({"path": "a"}, name="open")), "invalid function"),
        (record(f'{{"calls": [{written({"path": "a"})}]}}'), "leaked"),
        (record("<tool_call>\n{'name': 'read'}\n</tool_call>"), "invalid no JSON"),
        (record('{"name": "read", "arguments": {"path": "a\\x"}}'), "invalid no JSON"),
        (record('The file has {"name": "ledger", "version": 1}.'), "answer"),
        (record("I have read it. Let me run the tests."), "announces"),
        (record("First I read the file:"), "announces"),
        (record("Done, the tests pass.\n\nI'll now read a.py:\n\n"), "announces"),
        (record("I'll explain.\n\nA book holds 500 entries."), "answer"),
        (record("Let me know if there is more to do."), "answer"),
        (record("The command is:\n\n```bash\npytest -q\n```"), "code"),
        (record("```python\nx = 1"), "code"),
        (record("```bash\nls\n```\n\nIt lists the files."), "answer"),
        (record("```bash\nls\n```\nNext I will read them:"), "announces"),
    ],
)
def test_kind_of_an_answer(found, kind):
    assert " ".join(filter(None, turn_kinds.kind_of(found, TOOLS))) == kind
    assert kind.split()[0] in turn_kinds.KINDS


def test_texts_that_do_not_repeat():
    """Files of this repository end by themselves, however alike their lines are."""
    for path in sorted(Path(turn_kinds.__file__).parent.glob("*.py")):
        assert not turn_kinds.repeats(path.read_text("utf-8")), path.name


def test_only_what_a_turn_wants_is_right():
    assert [kind for kind in turn_kinds.KINDS if turn_kinds.is_right(kind, "call")] == ["valid"]
    assert [kind for kind in turn_kinds.KINDS if turn_kinds.is_right(kind, "answer")] == ["code", "answer"]
