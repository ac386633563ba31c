"""Small tasks for real agent programs with a served model: which of them are finished, and what each turn costs.

python benchmarks/agent_tasks.py model.gguf --out FOLDER [--clients aider,codex,opencode] [--tasks create,fix]
    [--user nobody] [--serve "--recover empty,loop"] [--seconds 480]

Programs are found and set up as in the tests marked ``clients``, by the recipes of the documentation. Each task has a new
repository and home folder, in the same place. FOLDER gets the log of the server, the record of its requests, the output of
each program, and ``tasks.jsonl``; a later run goes on after the tasks that are in it. Prints a row of a table for each:
its turns are prompt (cached), output, seconds to the first token.

**Programs run what the model says, and ask nobody.** As root, name a user without rights (``--user``); ``unshare --net``
keeps them from the network: ``unshare --net sh -c "ip link set lo up; exec python benchmarks/agent_tasks.py ..."``.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from client_recipes import CLIENTS, SEARCH

FILES = {
    "totals.py": '''"""Totals of a ledger."""


def total(entries):
    """Return the sum of all amounts."""
    result = 0
    for amount in entries[1:]:
        result += amount
    return result
''',
    "test_totals.py": """from totals import total

assert total([700, 120]) == 820, f"total([700, 120]) is {total([700, 120])}, not 820"
print("passed")
""",
    "report.py": """from totals import total


def report(entries):
    return f"sum: {total(entries)}"


print(report([0, 1, 2]))
""",
    "limits.py": '''"""Limits of a ledger."""

MAX_ENTRIES = 512  # in one ledger
MAX_AMOUNT = 90000
''',
}
ANSWER = re.compile(r"(?<![\d,.])512(?![\d,]|  #)")  # programs also print the file
TURN = re.compile(r"POST (\S+) (\d+) .*?prompt=(\d+) cached=(\d+) output=(\d+) ttft=(\S+) .*?finish=(\S+)")
URL = "http://127.0.0.1:18311"
AS_USER = {}
"""Settings of the processes that run programs, and what they have written."""


def printed(folder, *words):
    """Return what a command in the repository prints, empty if it fails."""
    try:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=60, check=False, **AS_USER)
    except subprocess.TimeoutExpired:
        return ""
    return "" if done.returncode else done.stdout.strip()


def text_of(folder, file):
    """Return the content of a file, empty if there is none."""
    return (folder / file).read_text("utf-8", "replace") if (folder / file).is_file() else ""


def same(folder, *files):
    """Return True if files have their first content."""
    return all(text_of(folder, file) == FILES[file] for file in files)


def is_renamed(folder):
    """Return True if both files call the function by its new name alone, and still work."""
    texts = [text_of(folder, file) for file in ("totals.py", "report.py")]
    is_clean = not any(re.search(r"\btotal\(|import total\b", text) for text in texts)
    return is_clean and all("sum_of(" in text for text in texts) and printed(folder, "python3", "report.py") == "sum: 3"


TASKS = {
    "create": (
        "Create a file hello.py that prints the text: Hello, world",
        lambda folder, _: printed(folder, "python3", "hello.py") == "Hello, world" and same(folder, *FILES),
    ),
    "answer": (
        "Read the file limits.py. What is the maximum number of entries? Answer with the number.",
        lambda folder, output: ANSWER.search(output) and same(folder, *FILES),
    ),
    "fix": (
        "Running `python3 test_totals.py` fails, because of a mistake in totals.py. Correct totals.py.",
        lambda folder, _: printed(folder, "python3", "test_totals.py") == "passed" and same(folder, "test_totals.py"),
    ),
    "rename": (
        "Rename the function total to sum_of in the files totals.py and report.py.",
        lambda folder, _: is_renamed(folder) and same(folder, "limits.py"),
    ),
}
"""Words of each task, and a check of the repository and of the program's output at its end."""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="GGUF file")
    parser.add_argument("--out", type=Path, required=True, help="folder of the records")
    parser.add_argument("--clients", default="aider,codex,opencode", help="programs, separated by commas")
    parser.add_argument("--tasks", default=",".join(TASKS), help="tasks, separated by commas")
    parser.add_argument("--serve", default="", help="options of the server")
    parser.add_argument("--context", type=int, default=32768, help="context of the server and of the programs (32768)")
    parser.add_argument("--seconds", type=float, default=480, help="time of a task (480)")
    parser.add_argument("--user", help="user who runs the programs; needs root")
    given = parser.parse_args()
    if given.user:
        AS_USER.update(user=given.user, group="nogroup", extra_groups=[])
    given.out.mkdir(parents=True, exist_ok=True)
    records = given.out / "tasks.jsonl"
    lines = records.read_text("utf-8").splitlines() if records.exists() else []
    done = {(each["client"], each["task"], each["serve"]) for each in map(json.loads, lines)}
    words = [sys.executable, "-m", "dflash.serve", given.model, "--port", "18311", "--context", str(given.context)]
    words += ["--model-name", "local", "--debug-log", str(given.out / "exchanges.jsonl"), *shlex.split(given.serve)]
    log = given.out / "server.log"
    with log.open("ab") as file, subprocess.Popen(words, stderr=file) as server:
        try:
            wait_for(lambda: httpx.get(f"{URL}/health").status_code == 200)
            for client in (each for name in given.clients.split(",") for each in CLIENTS if each.program == name):
                for task in given.tasks.split(","):
                    if (client.program, task, given.serve) not in done:
                        record = {"client": client.program, "task": task, "serve": given.serve}
                        record |= run(client, task, log, given)
                        with records.open("a", encoding="utf-8") as out:
                            out.write(json.dumps(record) + "\n")
                        turns = "; ".join("{prompt} ({cached}), {output}, {ttft}".format(**turn) for turn in record["turns"])
                        cells = client.program, task, record["right"], record["ended"], record["seconds"], turns
                        print("|", " | ".join(map(str, cells)), "|", flush=True)
        finally:
            server.terminate()


def wait_for(condition):
    """Wait until a condition holds; connections may fail before."""
    for _ in range(600):
        with suppress(httpx.TransportError):
            if condition():
                return
        time.sleep(0.5)
    raise SystemExit("the server does not answer, or not end")


def run(client, task, log, given):
    """Run a program on a task; return how it ended, and its turns from the access log."""
    words, check = TASKS[task]
    scratch = given.out.absolute() / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    folder, home = scratch / "repository", scratch / "home"
    prepare(folder, home)
    script = client.prepare(home, URL)
    for file in [each for each in home.rglob("*") if each.is_file()]:
        text = file.read_text("utf-8").replace("131072", str(given.context)).replace("16384", str(given.context // 8))
        file.write_text(text, "utf-8")
    if given.user:
        subprocess.run(["chown", "-R", given.user, scratch], check=True)
    base = {"PATH": SEARCH, "HOME": str(home), "TASK": words, "TERM": "dumb", "LANG": "C.UTF-8", "NO_COLOR": "1"}
    output = given.out / f"{client.program}-{task}{re.sub(r'[^a-z0-9]+', '-', given.serve)}.txt"
    start, began = log.stat().st_size, time.monotonic()
    with output.open("wb") as file:
        settings = {"cwd": folder, "env": base | client.quiet, "start_new_session": True, "stdin": subprocess.DEVNULL}
        process = subprocess.Popen(["sh", "-c", script], stdout=file, stderr=subprocess.STDOUT, **settings, **AS_USER)
        try:
            ended = str(process.wait(given.seconds))
        except subprocess.TimeoutExpired:
            ended = "time"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    seconds = round(time.monotonic() - began, 1)
    wait_for(lambda: not httpx.get(f"{URL}/slots").json())
    time.sleep(1)  # the access log has a thread of its own
    right = bool(check(folder, output.read_text("utf-8", "replace")))
    changes = printed(folder, "sh", "-c", "git add -A && git diff --cached first")[:4000]
    turns = turns_of(log.read_bytes()[start:].decode("utf-8", "replace"))
    return {"ended": ended, "right": right, "seconds": seconds, "changes": changes, "turns": turns}


def turns_of(text):
    """Return the turns in lines of an access log, with the texts of their numbers."""
    names = "route", "status", "prompt", "cached", "output", "ttft", "finish"
    return [dict(zip(names, turn, strict=True)) for turn in TURN.findall(text)]


def prepare(folder, home):
    """Write the repository and make an empty home folder."""
    home.mkdir(parents=True)
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text, "utf-8")
    settings = ["config user.name U", "config user.email u@example.org"]
    for words in ("init -q", *settings, "add -A", "commit -qm First", "tag first"):
        subprocess.run(["git", *words.split()], cwd=folder, check=True)


if __name__ == "__main__":
    main()
