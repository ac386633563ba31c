"""Session and prompt files of other programs: OpenAI batches, Codex's rollouts, JSON over several lines."""

import json

import pytest

from dflash.errors import RequestError
from dflash.evaluation.prompt_sets import load_prompts
from dflash.evaluation.replay import load_session

USER = {"role": "user", "content": "List the files."}


def item(kind, **fields):
    return {"timestamp": "2026-01-01T00:00:00Z", "type": "response_item", "payload": {"type": kind, **fields}}


def said(role, text):
    kind = "output_text" if role == "assistant" else "input_text"
    return item("message", role=role, content=[{"type": kind, "text": text}])


CALL = item("function_call", name="shell", arguments='{"command": ["ls"]}', call_id="c1")
RESULT = item("function_call_output", call_id="c1", output="a.py")
META = {"timestamp": "t", "type": "session_meta", "payload": {"id": "s", "base_instructions": {"text": "Be brief."}}}
NOTE = {"timestamp": "t", "type": "event_msg", "payload": {"type": "agent_message", "message": "not seen by the model"}}
ROLLOUT = [
    META,
    {"timestamp": "t", "type": "turn_context", "payload": {"cwd": "/repo"}},
    said("developer", "Rules."),
    said("user", "List the files."),
    item("reasoning", summary=[{"type": "summary_text", "text": "I list."}], encrypted_content="x"),
    CALL,
    NOTE,
    RESULT,
    said("assistant", "There is a.py."),
    said("user", "Thanks."),
]


def file(tmp_path, text, name="f.jsonl"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def roles(turn):
    return [message["role"] for message in turn.messages]


def check_rollout(turns, *, system):
    before = ["system"] * system
    assert [roles(turn) for turn in turns] == [
        [*before, "developer", "user"],
        [*before, "developer", "user", "assistant", "tool"],
        [*before, "developer", "user", "assistant", "tool", "assistant", "user"],
    ]
    answer = turns[1].messages[-2]
    assert answer["reasoning_content"] == "I list."
    assert [call["function"]["name"] for call in answer["tool_calls"]] == ["shell"]
    assert "not seen" not in json.dumps([turn.messages for turn in turns])


def test_a_rollout_of_codex(tmp_path):
    turns = load_session(file(tmp_path, lines(*ROLLOUT)))
    check_rollout(turns, system=1)
    assert turns[0].messages[0]["content"] == "Be brief."


def test_an_older_rollout_has_no_records_around_its_items(tmp_path):
    head = {"id": "s", "timestamp": "t", "instructions": None}
    rows = [row["payload"] for row in ROLLOUT if row["type"] == "response_item"]
    check_rollout(load_session(file(tmp_path, lines(head, {"record_type": "state"}, *rows))), system=0)


def test_a_compaction_begins_a_new_conversation(tmp_path):
    items = [said("user", "Summary of all.")["payload"]]
    for payload in ({"message": "Summary of all."}, {"message": "", "replacement_history": items}):
        rows = [
            *ROLLOUT,
            {"timestamp": "t", "type": "compacted", "payload": payload},
            said("assistant", "Go on."),
            said("user", "Now."),
        ]
        last = load_session(file(tmp_path, lines(*rows)))[-1]
        assert [message["content"] for message in last.messages] == ["Be brief.", "Summary of all.", "Go on.", "Now."]


def test_a_batch_of_openai(tmp_path):
    bodies = [{"model": "m", "messages": [USER]}, {"model": "m", "input": "List the files."}, {"model": "m", "prompt": "a"}]
    urls = ["/v1/chat/completions", "/v1/responses", "/v1/completions"]
    rows = [
        {"custom_id": f"r{i}", "method": "POST", "url": url, "body": body}
        for i, (url, body) in enumerate(zip(urls, bodies, strict=True))
    ]
    path = file(tmp_path, lines(*rows))
    assert [list(turn.messages) for turn in load_session(path)] == [[USER], [USER]]
    cases = load_prompts(path)
    assert [case.name for case in cases] == ["r0", "r1", "r2"]
    assert [case.prompt for case in cases] == [[USER], [USER], "a"]


def test_bodies_of_messages_and_responses_are_prompts(tmp_path):
    tool = {"name": "ls", "input_schema": {"type": "object"}}
    rows = [{"system": "Be brief.", "messages": [USER], "tools": [tool]}, {"instructions": "Be brief.", "input": [USER]}]
    cases = load_prompts(file(tmp_path, lines(*rows)))
    assert [case.prompt for case in cases] == [[{"role": "system", "content": "Be brief."}, USER]] * 2
    assert [tool["function"]["name"] for tool in cases[0].options["tools"]] == ["ls"]


@pytest.mark.parametrize("read", [load_session, load_prompts], ids=["session", "prompts"])
@pytest.mark.parametrize("form", ["one", "several", "array", "bom"])
def test_objects_may_stand_over_several_lines(tmp_path, read, form):
    body, n = {"messages": [USER]}, 1 if form in ("one", "bom") else 2
    text = json.dumps([body] * n if form == "array" else body, indent=2)
    text = "\n\n".join([text] * n) if form == "several" else text
    found = read(file(tmp_path, "\ufeff" * (form == "bom") + text))
    assert len(found) == n
    assert all(list(getattr(one, "messages", None) or one.prompt) == [USER] for one in found)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{\n  "messages": [\n    oops\n  ]\n}', "line 3: not valid JSON"),
        ('{"messages": []}\n{', "line 2: not valid JSON"),
        ("[\n1\n]", "line 1: must be a JSON object, got 1"),
        ("\n[]", "line 2: must be a JSON object"),
    ],
)
def test_a_broken_file_names_the_line(tmp_path, text, words):
    with pytest.raises(RequestError, match=words):
        load_session(file(tmp_path, text))
