"""The checks of tasks for agents: none holds in a new repository, each one where its task is done."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import agent_tasks

LOG = """11:17:47,703 GET /slots 200 id=a seconds=0.002
11:17:47,703 POST /v1/responses 200 id=b prompt=57 cached=56 output=26 ttft=5.228 accepted=0/0 finish=stop seconds=42.5
11:17:48,703 POST /v1/responses 499 id=c prompt=58 cached=0 output=0 ttft=- accepted=0/0 finish=cancelled seconds=1.5
"""

DONE = {
    "create": lambda folder: (folder / "hello.py").write_text("print('Hello, world')\n"),
    "answer": lambda folder: None,
    "fix": lambda folder: replace(folder, "totals.py", "entries[1:]", "entries"),
    "rename": lambda folder: (replace(folder, "totals.py", "total(", "sum_of("), rename_report(folder)),
}


def replace(folder, file, old, new):
    path = folder / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def rename_report(folder):
    replace(folder, "report.py", "import total", "import sum_of")
    replace(folder, "report.py", "total(", "sum_of(")


@pytest.mark.parametrize("task", agent_tasks.TASKS)
def test_a_check_holds_where_its_task_is_done(task, tmp_path):
    folder = tmp_path / "repository"
    agent_tasks.prepare(folder, tmp_path / "home")
    _, check = agent_tasks.TASKS[task]
    shown = "MAX_ENTRIES = 512  # in one ledger\n tokens used: 1,512\n"
    assert not check(folder, shown)
    DONE[task](folder)
    assert check(folder, f"{shown}The maximum is 512.")
    replace(folder, "limits.py", "512", "8")
    assert not check(folder, "512") or task == "fix"


def test_turns_of_an_access_log():
    turns = agent_tasks.turns_of(LOG)
    assert [(turn["status"], turn["cached"], turn["ttft"], turn["finish"]) for turn in turns] == [
        ("200", "56", "5.228", "stop"),
        ("499", "0", "-", "cancelled"),
    ]
