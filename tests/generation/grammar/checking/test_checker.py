"""The process that compiles grammars first: hostile grammars cost one request, and the process ends with the model."""

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from hang_guard import wait_until

import dflash
from dflash.errors import Cancelled, DFlashError, RequestError
from dflash.generation.grammar import limits
from dflash.generation.grammar.checking import process as process_module
from dflash.generation.grammar.checking.checker import GrammarChecker
from dflash.generation.grammar.gbnf import lark_of
from dflash.generation.grammar.guidance import GuidanceGrammar, GuidanceVocabulary, regex_source

BYTES = [bytes([byte]) for byte in range(256)] + [b"<end>"]
DEEP = "nested too deeply"


@pytest.fixture(scope="module")
def checker():
    with closing(GrammarChecker(BYTES, [256], [256])) as checker:
        yield checker


def chain(n, link, end):
    """A grammar of a schema whose definitions refer to each other in a row."""
    definitions = {f"a{i}": link({"$ref": f"#/$defs/a{i + 1}"}) for i in range(n)} | {f"a{n}": end}
    return "start: %json " + json.dumps({"$ref": "#/$defs/a0", "$defs": definitions})


def rules(n):
    return "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(n)) + f'\nr{n}: "a"'


HOSTILE = {
    "rules": (rules(4000), DEEP),
    "fewer rules": (rules(1000), DEEP),
    "references": (chain(5000, lambda to: to, {"type": "string"}), DEEP),
    "items": (chain(4000, lambda to: {"type": "array", "items": to}, {}), DEEP),
    "allOf": (chain(4000, lambda to: {"allOf": [to]}, {}), DEEP),
    "anyOf": (chain(4000, lambda to: {"anyOf": [{"type": "null"}, to]}, {}), DEEP),
    "optional characters": (regex_source("a?" * 30_000), "CPU time|memory"),
    "more of them": (regex_source("a?" * 100_000), "CPU time|memory"),
    "a pattern for each property": (
        "start: %json " + json.dumps({"patternProperties": {f"^a{i}.*b{i}$": {"type": "string"} for i in range(300)}}),
        "CPU time|memory|lexer",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_is_refused_and_the_process_lives_on(checker, name):
    checker.check("start: /a/")
    pid = checker._process._process.pid
    source, message = HOSTILE[name]
    with pytest.raises(RequestError, match=message) as caught:
        checker.check(source)
    assert "\n" not in str(caught.value)
    assert checker.check('start: "b"') == 'start: "b"'
    assert checker._process._process.pid == pid


def test_memory_is_limited(checker):
    """An allocation of the library that fails ends the check alone, and the message names the limit."""
    with pytest.raises(RequestError, match=f"more than {limits.CHECK_BYTES >> 20} MB of memory|CPU time"):
        checker.check('start: "' + "a" * 1000 + '"{1000000}')


def test_a_grammar_is_checked_once(checker, monkeypatch):
    checker.check('start: "once"')
    monkeypatch.setattr(checker, "_asked", lambda _: pytest.fail("it was checked again"))
    assert checker.check('start: "once"') == 'start: "once"'


def test_gbnf_is_converted_there(checker):
    assert checker.check('root ::= "a" [0-9]+', gbnf=True) == lark_of('root ::= "a" [0-9]+')
    with pytest.raises(RequestError, match="the GBNF grammar is not valid"):
        checker.check("root ::= x", gbnf=True)


def test_a_killed_process_is_started_again(checker):
    checker.check("start: /a/")
    for gone in (True, False):  # noticed before the grammar is sent, or only afterwards
        before = checker._process._process
        os.killpg(before.pid, signal.SIGKILL)
        if gone:
            before.wait()
        assert checker.check(f'start: "again {gone}"')
        assert checker._process._process is not before
        assert before.returncode is not None, "no zombie stays"


def test_a_process_that_does_not_start_is_an_error_and_nothing_is_compiled_here(monkeypatch, tmp_path):
    from demo_text import demo_tokenizer

    vocabulary = GuidanceVocabulary(demo_tokenizer())
    monkeypatch.setattr("dflash.generation.grammar.guidance.compile_source", lambda *_: pytest.fail("it was compiled here"))
    broken = tmp_path / "broken python"
    broken.write_text("#!/bin/sh\necho 'no such luck' >&2\nexit 1\n")
    broken.chmod(0o755)
    for path, reason in (("/nowhere/python", "No such file"), (str(broken), "no such luck")):
        monkeypatch.setattr(process_module.sys, "executable", path)
        with closing(vocabulary.isolate()), pytest.raises(DFlashError, match=f"does not start: .*{reason}") as caught:
            GuidanceGrammar(vocabulary, "start: /a/", "lark")
        assert not isinstance(caught.value, RequestError), "the request is not at fault"


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_nothing_is_left_of_a_closed_checker():
    def once():
        with closing(GrammarChecker(BYTES, [256], [256])) as checker:
            checker.check("start: /a/")
            child = checker._process._process
        assert child.returncode is not None
        with pytest.raises(Cancelled):
            checker.check("start: /b/")

    once()
    before = open_files(), threading.active_count()
    for _ in range(3):
        once()
    assert (open_files(), threading.active_count()) == before


def test_close_wakes_a_thread_that_waits_for_a_verdict():
    checker, errors = GrammarChecker(BYTES, [256], [256]), []
    checker.check("start: /a/")
    os.killpg(checker._process._process.pid, signal.SIGSTOP)

    def ask():
        try:
            checker.check("start: /c/")
        except DFlashError as error:
            errors.append(error)

    waiting = threading.Thread(target=ask)
    waiting.start()
    wait_until(checker._lock.locked)
    checker.close()
    waiting.join()
    assert [type(error) for error in errors] == [Cancelled]


def test_the_process_belongs_to_a_loaded_model():
    with dflash.load("demo", device="cpu", threads=1, context=256, sequences=1) as lm:
        checker = GuidanceVocabulary.of(lm.tokenizer).checker
        lm.generate([1, 2], regex="yes|no", max_tokens=1)
        child = checker._process._process
        with pytest.raises(RequestError, match=f"^lark: .*{DEEP}"):
            lm.generate([1, 2], lark=HOSTILE["fewer rules"][0])
        assert child.poll() is None
    assert child.returncode is not None
    with dflash.load("demo", device="cpu", threads=1, context=256, sequences=1, isolate=False) as lm:
        assert GuidanceVocabulary.of(lm.tokenizer).checker is None
        lm.generate([1, 2], regex="yes|no", max_tokens=1)


SCRIPT = """
import os, sys
sys.path[:0] = {paths!r}
from dflash.generation.grammar.checking.checker import GrammarChecker
os.chdir("/")
print("started", flush=True)
checker = GrammarChecker([bytes([byte]) for byte in range(256)] + [b"<end>"], [256], [256])
checker.check("start: /a/")
print(checker._process._process.pid, flush=True)
sys.stdin.read()
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("flags", [["-I"], ["-I", "-S"], []], ids=" ".join)
def test_it_starts_wherever_modules_come_from_and_ends_with_a_killed_parent(tmp_path, flags):
    """From a script without a main guard in a folder with a space, modules that hide others beside it, paths set by hand."""
    folder = tmp_path / "a folder: of mine"
    folder.mkdir()
    (folder / "script.py").write_text(SCRIPT.format(paths=[path for path in sys.path if path]))
    for name in ("json", "llguidance", "sitecustomize"):
        (folder / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    (folder / "package").mkdir()
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONSTARTUP": "nothing"} if flags else dict(os.environ)
    script = folder / "script.py"
    if not flags:
        script = script.rename(folder / "package" / "script.py")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, *flags, str(script)], cwd=folder, env=environment, **pipes) as parent:
        assert parent.stdout.readline() == "started\n", "the script runs once, not in the process, too"
        pid = int(parent.stdout.readline())
        parent.stdin.close()
        assert parent.wait() == -signal.SIGKILL
    wait_until(lambda: not Path(f"/proc/{pid}").exists() or "State:\tZ" in Path(f"/proc/{pid}/status").read_text())
