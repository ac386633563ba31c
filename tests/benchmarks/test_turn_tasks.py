"""Agent turns that are made from a recorded request."""

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import turn_tasks

TOOL = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}


@pytest.fixture
def recordings(tmp_path):
    """One request of each client: a system prompt, and the task as the last part of the user's message."""
    for client in turn_tasks.CLIENTS.values():
        content = [{"type": "text", "text": "about"}, {"type": "text", "text": client.task}]
        messages = [{"role": "system", "content": "rules"}, {"role": "user", "content": content}]
        bodies = [{"messages": messages[:1]}, {"messages": messages, "tools": [TOOL]}]
        path = tmp_path / client.file
        path.parent.mkdir()
        path.write_text("\n".join(json.dumps({"path": "/v1/chat/completions", "body": body}) for body in bodies))
    return tmp_path


def test_turns_of_all_clients(recordings):
    turns = turn_tasks.agent_turns(recordings, list(turn_tasks.CLIENTS))
    assert len({turn.name for turn in turns}) == len(turns) == 12 * len(turn_tasks.CLIENTS)
    assert [turn.wants for turn in turns].count("call") == 8 * len(turn_tasks.CLIENTS)
    for turn in turns:
        assert turn.tools == [TOOL]
        assert turn.messages[1]["content"][1]["text"] == turn_tasks.TASKS[turn.name.split("/")[1]][0]
        assert len(turn.messages) == 2 + 2 * int(turn.name.split("/")[2])


def test_a_turn_continues_the_one_before(recordings):
    first, second = turn_tasks.agent_turns(recordings, ["pi"])[:2]
    assert second.messages[: len(first.messages)] == first.messages
    called, result = second.messages[len(first.messages) :]
    function = called["tool_calls"][0]["function"]
    assert json.loads(function["arguments"]) == {"path": "notes/todo.txt", "content": turn_tasks.TODO}
    assert result["tool_call_id"] == called["tool_calls"][0]["id"]


def test_calls_have_all_parts_of_their_actions(recordings):
    """A part that a client's tool does not take would leave a gap in the task."""
    for turn in turn_tasks.agent_turns(recordings, list(turn_tasks.CLIENTS)):
        arguments = "".join(call["function"]["arguments"] for each in turn.messages for call in each.get("tool_calls", ()))
        _, actions = turn_tasks.TASKS[turn.name.split("/")[1]]
        for _, parts, _ in actions[: int(turn.name.split("/")[2])]:
            assert all(json.dumps(part)[1:-1] in arguments for part in parts.values()), turn.name
        assert not any(f"{{{name}}}" in arguments for name in ("path", "text", "old", "new", "command"))
