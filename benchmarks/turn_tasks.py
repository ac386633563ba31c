"""Agent turns of recorded clients: their system prompts and tools, and tasks on the files of a small repository.

A task is a course of actions with their results. Its turn `n` has the first `n` of them in the prompt and wants the next
one, or an answer if there is none left.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from dflash.evaluation.replay import load_session

RECORDED = "List the files of this directory, then write hello.txt with a short program in it."
"""Task of the recordings, which another one takes the place of."""

TOTALS = '''"""Totals of a ledger."""


def total(entries):
    """Return the sum of all amounts."""
    result = 0
    for entry in entries[1:]:
        result += entry.amount
    return result


def average(entries):
    """Return the mean amount, 0 for an empty ledger."""
    return total(entries) / len(entries) if entries else 0
'''

BOOK = '''"""Entries of a ledger."""

from dataclasses import dataclass

LIMIT = 500
"""Most entries of a book."""


@dataclass
class Entry:
    """An amount with its purpose."""

    purpose: str
    amount: int


class Book:
    """A list of entries, saved as lines of text."""

    def __init__(self):
        self.entries = []

    def add_entry(self, purpose, amount):
        """Append an entry; raise ValueError if the book is full."""
        if len(self.entries) >= LIMIT:
            raise ValueError("the book is full")
        self.entries.append(Entry(purpose, amount))

    def lines(self):
        """Return one line for each entry."""
        return [f"{entry.purpose}: {entry.amount}" for entry in self.entries]
'''

FAILED = """F.                                                                       [100%]
=================================== FAILURES ===================================
__________________________________ test_total __________________________________

    def test_total():
>       assert total([Entry("rent", 700), Entry("food", 120)]) == 820
E       AssertionError: assert 120 == 820

tests/test_totals.py:6: AssertionError
=========================== short test summary info ============================
FAILED tests/test_totals.py::test_total - AssertionError: assert 120 == 820
1 failed, 1 passed in 0.02s
"""

PASSED = """..                                                                       [100%]
2 passed in 0.01s
"""

FOUND = """./ledger/book.py:25:    def add_entry(self, purpose, amount):
./ledger/__main__.py:9:    book.add_entry(purpose, int(amount))
"""

TODO = "- write the manual\n- add a test of Book\n- publish 1.0\n"

Action = tuple[str, dict[str, str], str]
"""Kind of an action, its parts, and the result."""

TASKS: dict[str, tuple[str, list[Action]]] = {
    "create": (
        f"Create the file notes/todo.txt with these three lines and nothing else:\n{TODO}",
        [("write", {"path": "notes/todo.txt", "text": TODO}, "The file was written.")],
    ),
    "fix": (
        "A test of this repository fails (run `python -m pytest -q`). Find out why and fix the code, not the test. Run the "
        "tests again at the end.",
        [
            ("run", {"command": "python -m pytest -q"}, FAILED),
            ("read", {"path": "ledger/totals.py"}, TOTALS),
            ("edit", {"path": "ledger/totals.py", "old": "entries[1:]", "new": "entries"}, "The file was edited."),
            ("run", {"command": "python -m pytest -q"}, PASSED),
        ],
    ),
    "rename": (
        "Rename the method add_entry of class Book to append, everywhere in this repository.",
        [
            ("run", {"command": "grep -rn add_entry ."}, FOUND),
            ("run", {"command": "sed -i s/add_entry/append/ ledger/book.py ledger/__main__.py"}, "(no output)"),
        ],
    ),
    "answer": (
        "How many entries can a Book in ledger/book.py hold, and what happens when one more is added?",
        [("read", {"path": "ledger/book.py"}, BOOK)],
    ),
}


class Client(NamedTuple):
    """Recording of a client, its tool for each kind of action (name, and arguments with parts in braces), and its task."""

    file: str
    tools: dict[str, tuple[str, dict[str, Any]]]
    task: str = RECORDED


def _client(file: str, paths: str, old: str, new: str, tools: str) -> Client:
    """Return a client by the names of its arguments (`paths` to read, edit) and of its tools to read, write, edit, run."""
    path, edited = (2 * paths.split())[:2]
    read, write, edit, run = tools.split()
    return Client(
        file,
        {
            "read": (read, {path: "{path}"}),
            "write": (write, {path: "{path}", "content": "{text}"}),
            "edit": (edit, {edited: "{path}", old: "{old}", new: "{new}"}),
            "run": (run, {"command": "{command}"}),
        },
    )


def _shell(file: str, tool: str, command: str) -> Client:
    """Return a client that does everything with commands."""
    commands = {
        "read": "cat {path}",
        "write": "cat > {path} <<'EOF'\n{text}EOF",
        "edit": "perl -pi -e 's/\\Q{old}\\E/{new}/' {path}",
        "run": "{command}",
    }
    return Client(file, {kind: (tool, {command: text}) for kind, text in commands.items()})


CLIENTS = {
    "pi": Client(
        "pi/tools.jsonl",
        {
            "read": ("read", {"path": "{path}"}),
            "write": ("write", {"path": "{path}", "content": "{text}"}),
            "edit": ("edit", {"path": "{path}", "edits": [{"oldText": "{old}", "newText": "{new}"}]}),
            "run": ("bash", {"command": "{command}"}),
        },
    ),
    "codex": _shell("codex/lean.jsonl", "exec_command", "cmd"),
    "opencode": _client("opencode/tools.jsonl", "filePath", "oldString", "newString", "read write edit bash"),
    "claude": _client("claude/tools.jsonl", "file_path", "old_string", "new_string", "Read Write Edit Bash"),
    "qwen": _client(
        "qwen/tools.jsonl", "file_path", "old_string", "new_string", "read_file write_file edit run_shell_command"
    ),
    "mini": _shell("mini/tools.jsonl", "bash", "command")._replace(  # words of its task are replaced too
        task="Blue bar birth or cold butterfly, club again bring.bag corn i black another so me."
    ),
    "continue": _client("continue/tools.jsonl", "filepath file_path", "old_string", "new_string", "Read Write Edit Bash"),
}


class AgentTurn(NamedTuple):
    """A prompt of an agent.

    Parameters
    ----------
    name : str
        Client, task and number of actions before, as ``pi/fix/2``.
    messages, tools : list of dict
        In OpenAI's format.
    wants : str
        ``"call"`` if the task goes on, ``"answer"`` if it is done.
    """

    name: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    wants: str


def agent_turns(recordings: Path, clients: list[str]) -> list[AgentTurn]:
    """Return the turns of clients; those whose prompts continue each other follow each other."""
    return [turn for name in clients for turn in _turns(recordings, name)]


def _turns(recordings: Path, name: str) -> list[AgentTurn]:
    client, found = CLIENTS[name], []
    recorded = next(turn for turn in load_session(recordings / client.file) if turn.tools)
    text = json.dumps(list(recorded.messages))
    assert text.count(client.task) == 1, f"{client.file}: not the recording of {client.task!r}"
    for task, (words, actions) in TASKS.items():
        messages = json.loads(text.replace(client.task, json.dumps(words)[1:-1]))
        for number in range(len(actions) + 1):
            wants = "call" if number < len(actions) else "answer"
            found.append(AgentTurn(f"{name}/{task}/{number}", list(messages), list(recorded.tools), wants))
            if number < len(actions):
                messages += _done(client, actions[number], f"call_{number}")
    return found


def _done(client: Client, action: Action, identifier: str) -> list[dict[str, Any]]:
    """Return the messages of an action: the call, and its result."""
    kind, parts, result = action
    name, arguments = client.tools[kind]
    call = {"name": name, "arguments": json.dumps(_filled(arguments, parts))}
    asked = {"role": "assistant", "content": "", "tool_calls": [{"id": identifier, "type": "function", "function": call}]}
    return [asked, {"role": "tool", "tool_call_id": identifier, "content": result}]


def _filled(value: Any, parts: dict[str, str]) -> Any:
    if isinstance(value, str):
        for name, part in parts.items():
            value = value.replace(f"{{{name}}}", part)
        return value
    if isinstance(value, list):
        return [_filled(each, parts) for each in value]
    return {key: _filled(each, parts) for key, each in value.items()}
