"""Agent programs finish a task on the server: they list files, write one and end. ``pytest -m clients`` runs these tests.

The programs are looked for in the folder of ``DFLASH_CLIENTS``, then in ``PATH``. Nothing is downloaded.
"""

import json
import re
import subprocess
from itertools import pairwise

import pytest
from agent_server import CUT, Agent, serving
from client_recipes import CLIENTS, END, SEARCH, WRITTEN, called, found
from hang_guard import GUARD
from loopback import starting

from dflash.decode.engine import Engine
from dflash.serve.limits import Limits

pytestmark = pytest.mark.clients

TASK = "List the files of this directory, then write hello.txt."
SIDE = "Write a file"
TERMINAL = {"TERM": "dumb", "LANG": "C.UTF-8", "NO_COLOR": "1", "CI": "1"}


def offered(prompt):
    """Names of the tools in a prompt."""
    tools = re.search(r"<tools>\n(.*?)\n</tools>", prompt, re.S)
    return {json.loads(line)["function"]["name"] for line in tools[1].splitlines()} if tools else set()


def results(prompt):
    """Number of results of tools since the task."""
    return prompt.rsplit(TASK, 1)[1].count("<tool_response>\n")


@pytest.fixture
def folder(tmp_path):
    """A small repository beside an empty home folder."""
    folder = tmp_path / "repository"
    folder.mkdir()
    (tmp_path / "home").mkdir()
    (folder / "README.md").write_text("# Demo\n")
    (folder / "main.py").write_text("print(1)\n")
    settings = ["config user.name U", "config user.email u@example.org"]
    for words in ("init -q", *settings, "add -A", "commit -qm First"):
        subprocess.run(["git", *words.split()], cwd=folder, check=True)
    return folder


@pytest.fixture
def run(folder, lm, tmp_path):
    """Runs a program over an engine to its end: ``run(client, engine)`` returns its exit status and what it printed."""

    def run(client, engine, limits=Limits(), task=TASK):  # noqa: B008 - immutable
        output = tmp_path / "output"
        if found(client.program) is None:
            pytest.skip(f"{client.program} is not installed: neither in DFLASH_CLIENTS nor in PATH")
        base = {"PATH": SEARCH, "HOME": str(tmp_path / "home"), "TASK": task, **TERMINAL}
        with (
            output.open("wb") as file,
            starting(stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT) as (listener, become),
            serving(lm, engine, listener, limits) as url,
        ):
            script = client.prepare(tmp_path / "home", url)
            status = become(["sh", "-c", script], folder, base | client.quiet).wait(GUARD)
        return status, output.read_text(encoding="utf-8", errors="replace")

    return run


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.program)
def test_a_task_is_finished(client, run, folder, lm):
    """The file is as the model wrote it, in one request for each output; each prompt begins with the one before it."""
    main = []

    def reply(prompt):
        if len(main) == len(steps) or not {call[0] for call in (client.look, client.write) if call} <= offered(prompt):
            return SIDE
        main.append(prompt)
        return steps[len(main) - 1]

    steps, engine = client.steps(folder), Agent(lm.tokenizer, reply)
    status, output = run(client, engine)
    assert status == 0, output
    assert (folder / "hello.txt").read_text() == WRITTEN
    assert END in output
    assert [len(main), len(engine.prompts)] == [len(steps), len(steps) + client.side]
    if client.look:
        assert "README.md" in main[1].removeprefix(main[0])
    outputs = dict(zip(engine.prompts, engine.outputs, strict=True))
    kept = [after.startswith(before + outputs[before]) for before, after in pairwise(main)]
    assert kept == [client.reasons] * (len(steps) - 1)


def test_a_cut_call_is_not_run(run, folder, lm):
    """Claude Code returns a call that ``max_tokens`` has cut off to the model as an error."""
    client = CLIENTS[0]

    def reply(prompt):
        there.append((folder / "hello.txt").exists())
        return steps[len(there) - 1]

    look, write, end = client.steps(folder)
    steps, there, engine = [look, write.split("&[")[0] + CUT, write, end], [], Agent(lm.tokenizer, reply)
    status, output = run(client, engine)
    assert status == 0, output
    assert there == [False, False, False, True]
    assert "could not be parsed as JSON" in engine.prompts[2].removeprefix(engine.prompts[1])
    assert (folder / "hello.txt").read_text() == WRITTEN


@pytest.fixture
def small(run, folder, lm):
    """Fills the context: ``small(client, after)`` runs a client whose model asks for a thousand numbers again and again.

    The context holds the first prompt and the numbers twice. `after` returns the output for a prompt, or None to ask again.
    """

    def small(client, after):
        first = Agent(lm.tokenizer, lambda prompt: END)
        assert run(client, first)[0] == 0
        numbers = "".join(f"{i}\n" for i in range(1, 1001))
        n_first, n_numbers = (len(lm.tokenizer.encode(text)) for text in (first.prompts[0], numbers))
        look = called(client.look[0], dict.fromkeys(client.look[1], "seq 1000"))
        engine = Agent(lm.tokenizer, lambda prompt: after(prompt) or look)
        return *run(client, engine, Limits(n_first + 5 * n_numbers // 2)), engine

    return small


def test_a_full_context_is_compacted(small, folder):
    """Claude Code drops its first turns after ``prompt is too long``, asks for a summary and finishes the task."""
    client, summaries = CLIENTS[0], []

    def after(prompt):
        if "<summary>" in prompt.rsplit("<|im_start|>user", 1)[1]:
            summaries.append(prompt)
            return "<summary>\nThe numbers are listed.\n</summary>"
        return (end if (folder / "hello.txt").exists() else write) if summaries else None

    _, write, end = client.steps(folder)
    status, output, engine = small(client, after)
    assert status == 0, output
    assert END in output
    assert [results(prompt) for prompt in engine.prompts[:3]] == [0, 1, 2]
    assert summaries == engine.prompts[3:4]
    assert "The numbers are listed." in engine.prompts[4]
    assert len(engine.prompts) == 6
    assert (folder / "hello.txt").read_text() == WRITTEN


def test_a_full_context_has_its_name(small):
    """Codex knows what ``context_length_exceeded`` is and ends at once."""
    status, output, engine = small(CLIENTS[1], lambda prompt: None)
    assert status == 1
    assert "ran out of room in the model's context window" in output
    assert [results(prompt) for prompt in engine.prompts] == [0, 1, 2]


class Real(Engine):
    """Engine that remembers its sessions."""

    def __init__(self, model):
        super().__init__(model)
        self.sessions = []

    def add_all(self, sessions):
        self.sessions += sessions
        super().add_all(sessions)


@pytest.mark.parametrize("program", ["pi", "cn"])
def test_the_demo_answers(program, run, lm, pools):
    """The short prompts of two programs, on the demo model itself: the text that it writes is printed."""
    (client,) = [client for client in CLIENTS if client.program == program]
    engine = Real(lm.model)
    status, output = run(client, engine, Limits(lm.model.config.context), "What is the capital of Japan?")
    assert status == 0, output
    (session,) = engine.sessions
    reasoning, end, text = lm.tokenizer.decode(session.output_ids).partition("</think>")
    assert session.finish_reason == "stop"
    assert reasoning
    assert end
    assert text.removesuffix("<|im_end|>").strip() in output
