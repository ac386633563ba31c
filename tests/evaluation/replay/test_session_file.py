"""Session files: the exact prompts of each format, and errors that name the line."""

import json
import re
from pathlib import Path

import pytest
from demo_text import demo_tokenizer

from dflash.errors import NotFound, RequestError
from dflash.evaluation.replay import load_session
from dflash.generation.messages.chat_prompt import chat_ids
from dflash.model.text.chat_template import ChatTemplate

DATA = Path(__file__).parents[2] / "data"

TASK = "List the files of this directory, then write hello.txt with a short program in it."

LISTING = ".\n..\n.git\nREADME.md\nmain.py"

PROGRAM = 'def main():\n    print("héllo <b>&")\n'


def shown(role, text):
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def a_call(name, **arguments):
    values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


def results(*texts):
    return shown("user", "\n".join(f"<tool_response>\n{text}\n</tool_response>" for text in texts))


ASKS = "<|im_start|>assistant\n<think>\n"
"""End of a prompt whose answer may begin with reasoning."""

ASKS_AT_ONCE = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
"""End of a prompt without reasoning."""


def prompt(turn, *, tools=()):
    """Render the messages of a turn; the tools are compared apart from them."""
    template = ChatTemplate((DATA / "demo" / "chat_template.jinja").read_text(encoding="utf-8"), tokens={})
    ids = chat_ids(demo_tokenizer(), template, turn.messages, tools=tools, settings=turn.settings, max_tokens=9999)
    return demo_tokenizer().decode(ids)


def written(tmp_path, *rows):
    path = tmp_path / "session.jsonl"
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_a_transcript_becomes_its_turns():
    """Parts of one answer and results between them, a note, a subagent, an error, a compaction and an image."""
    turns = load_session(DATA / "replay" / "transcript.jsonl")
    first = shown("user", f"<system-reminder>\nAnswer in English.\n</system-reminder>\n\n{TASK}")
    calls = a_call("Bash", command="ls -a") + "\n" + a_call("Read", file_path="/repo/README.md")
    thoughts = "<think>\nThe user wants a listing.\nI call the shell.\n</think>\n\n"
    second = first + shown("assistant", f"{thoughts}Two at once.\n\n{calls}")
    second += results(LISTING, "1\t# Demo\n2\t\n3\tA small project.\n4")
    write = a_call("Write", file_path="/repo/hello.txt", content=PROGRAM)
    third = second + shown("assistant", f"<think>\n\n</think>\n\n{write}")
    state = "(file state is current in your context — no need to Read it back)"
    third += results(f"File created successfully at: /repo/hello.txt {state}")
    continued = "This session is being continued from a previous conversation. hello.txt was written."
    last = shown("user", f"{continued}\n\nShow it.[image]")
    assert [turn.name for turn in turns] == ["line 5", "line 13", "line 16", "end"]
    assert [prompt(turn) for turn in turns] == [text + ASKS for text in (first, second, third, last)]


def test_thinking_is_dropped_by_the_template(tmp_path):
    """Only thinking after the last question stays, as the template has it."""
    rows = (DATA / "replay" / "transcript.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[:7]
    question = {"type": "user", "message": {"role": "user", "content": "Why?"}}
    before, after = load_session(written(tmp_path, *rows, question))
    assert prompt(before).endswith(f"{TASK}<|im_end|>\n{ASKS}")
    assert "The user wants a listing." not in prompt(after)
    assert after.messages[1]["reasoning_content"] == "The user wants a listing.\nI call the shell."


def test_a_transcript_of_a_subagent(tmp_path):
    """Records of subagents are the session if the file holds nothing else."""
    rows = [
        {"type": "user", "isSidechain": True, "message": {"role": "user", "content": "Look at main.py."}},
        {"type": "assistant", "isSidechain": True, "message": {"content": [{"type": "text", "text": "It is empty."}]}},
    ]
    (turn,) = load_session(written(tmp_path, *rows))
    assert prompt(turn) == shown("user", "Look at main.py.") + ASKS


def test_recorded_messages_become_prompts():
    turns = load_session(DATA / "replay" / "messages.jsonl")
    first = shown("system", "Ear bar my amount action agreement architect aro") + shown("user", TASK)
    answer = f"<think>\n\n</think>\n\nI look at the files first.\n\n{a_call('bash', command='ls -a')}"
    second = first + shown("assistant", answer) + results(LISTING)
    write = a_call("write", path="/repo/hello.txt", content=PROGRAM)
    third = second + shown("assistant", f"<think>\n\n</think>\n\n{write}")
    third += results("Successfully wrote 36 bytes to /repo/hello.txt")
    assert [turn.name for turn in turns] == ["line 3", "line 5", "end"]
    assert [prompt(turn) for turn in turns] == [text + ASKS for text in (first, second, third)]


def test_recorded_requests_become_turns_in_order():
    """Chat completions, Messages and Responses in the order of arrival; the count of tokens is no turn."""
    chat, messages, responses = load_session(DATA / "replay" / "requests.jsonl")
    system = shown("system", "Ear bar my amount action agreement architect aro")
    answer = f"<think>\n\n</think>\n\nI look at the files first.\n\n{a_call('bash', command='ls -a')}"
    assert (chat.name, chat.settings) == ("line 3", {"enable_thinking": False})
    assert prompt(chat) == system + shown("user", TASK) + shown("assistant", answer) + results(LISTING) + ASKS_AT_ONCE

    billing = "x-anthropic-billing-header: cc_version=2.1.330.cEar bar i Animal blood, chest to Allowance'i Ani"
    note = "<system-reminder>\n# Arrangement\nEar born born cabinet so bar break\n</system-reminder>"
    search = a_call("ToolSearch", query="select:WebFetch,WebSearch", max_results=5)
    text = shown("user", TASK) + shown("user", note) + shown("assistant", f"<think>\n\n</think>\n\n{search}")
    assert prompt(messages).partition("<|im_end|>\n")[2] == text + results("WebFetch\nWebSearch") + ASKS
    assert prompt(messages).startswith(f"<|im_start|>system\n{billing}")
    schema = messages.tools[0]["function"].pop("parameters")
    assert schema["properties"] == {"command": {"type": "string"}}
    assert messages.tools[0] == {"type": "function", "function": {"name": "Bash", "description": "Addition i body bedr"}}
    assert [(tool["function"]["name"], tool["defer_loading"]) for tool in messages.tools[1:]] == [("WebFetch", True)]

    system = shown("system", "Ear bar i action blood another so bar Brown FEW,")
    thoughts = "<think>\nThe user wants a listing.\nI call the shell.\n</think>\n\n"
    output = "Chunk ID: 693fbe\nWall time: 0.0000 seconds\nProcess exited with code 0\nOriginal token count: 7\nOutput:\n"
    text = system + shown("user", TASK) + shown("assistant", thoughts + a_call("exec_command", cmd="ls -a"))
    assert prompt(responses) == text + results(output + LISTING) + ASKS
    assert [tool["function"]["name"] for tool in responses.tools] == ["exec_command", "close_agent"]
    assert "exec_command" in prompt(responses, tools=responses.tools)


def test_one_body_is_split_into_its_turns(tmp_path):
    """Several bodies are a turn each, however many answers they hold."""
    messages = [{"role": role, "content": role} for role in ("system", "user", "assistant", "user", "assistant")]
    tools = [{"type": "function", "function": {"name": "f"}}]
    body = {"messages": messages, "tools": tools, "chat_template_kwargs": {"x": 1}}
    turns = load_session(written(tmp_path, body))
    assert [list(turn.messages) for turn in turns] == [messages[:2], messages[:4]]
    assert all((turn.tools, turn.settings) == (tools, {"x": 1}) for turn in turns)
    assert [turn.name for turn in turns] == ["message 3", "message 5"]
    assert [list(turn.messages) for turn in load_session(written(tmp_path, body, "\n", body))] == [messages, messages]


def test_input_as_a_text(tmp_path):
    (turn,) = load_session(written(tmp_path, {"input": "Hi", "instructions": "Be brief."}))
    assert prompt(turn) == shown("system", "Be brief.") + shown("user", "Hi") + ASKS


ASKED = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([ASKED, "{\n"], "line 2: not valid JSON: Expecting property name"),
        ([ASKED, "\n", "[1]\n"], "line 3: must be a JSON object, got [1]"),
        ([ASKED, {"x": 1, "y": 2}], "line 2: must be a transcript record (type), a message (role), a request body"),
        ([ASKED, {"messages": [ASKED]}], "line 2: is a request body, but the file began with a message"),
        ([ASKED, {"role": 3}], "line 2: role: must be a string, got 3"),
        ([{"role": "user", "content": 7}], "line 1: content: must be a string or an array of blocks, got 7"),
        ([{"role": "user", "content": ["x"]}], "line 1: content: must hold blocks with a type and its fields, got 'x'"),
        ([{"role": "user", "content": [{"type": "text"}]}], "line 1: content: must hold blocks with a type and its fields"),
        ([{"role": "assistant", "content": [{"type": "tool_use"}]}], "line 1: content: must hold blocks with a type"),
        ([{"type": "user", "message": "Hi"}], "line 1: message: must be an object, got 'Hi'"),
        ([{"messages": []}], "line 1: messages: must be an array of at least one message, got []"),
        ([{"input": [3]}], "line 1: input: must hold objects, got 3"),
        ([{"messages": [ASKED], "tools": 3}], "line 1: tools: must be an array, got 3"),
        ([{"path": "/v1/messages", "body": {"messages": {}}}], "line 1: messages: must be an array of at least one message"),
        ([], "holds no prompt of an assistant's turn"),
        ([{"role": "assistant", "content": "Hi"}], "holds no prompt of an assistant's turn"),
    ],
    ids=str,
)
def test_an_error_names_the_line(tmp_path, rows, message):
    path = written(tmp_path, *rows)
    with pytest.raises(RequestError, match=re.escape(message)) as found:
        load_session(path)
    assert str(found.value).startswith(str(path))
    assert "\n" not in str(found.value)


def changed(value, new):
    """Yield copies of a JSON value in each of which one of its parts is another value."""
    yield new
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            for other in changed(part, new):
                copy = value.copy()
                copy[key] = other
                yield copy


@pytest.mark.parametrize("name", ["transcript", "messages", "requests"])
def test_a_part_of_another_type_is_read_or_refused(tmp_path, name):
    rows = [json.loads(line) for line in (DATA / "replay" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
    refused = 0
    for i, row in enumerate(rows):
        for new in (7, "x", [], {}, None, [{}]):
            for other in changed(row, new):
                try:
                    load_session(written(tmp_path, *rows[:i], json.dumps(other) + "\n", *rows[i + 1 :]))
                except RequestError as error:
                    refused += 1
                    assert "\n" not in str(error)
    assert refused > 50


def test_no_such_file(tmp_path):
    with pytest.raises(NotFound, match=r"none\.jsonl': No such file"):
        load_session(tmp_path / "none.jsonl")
