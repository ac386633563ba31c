"""No command ends with a traceback because of its standard streams."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hang_guard import GUARD

import dflash
from dflash.__main__ import main

DEMO = Path(dflash.__file__).parent / "data" / "demo-Q4_K_M.gguf"
SHORT = ["-n", "4", "--threads", "1"]
REDIRECTIONS = [">&-", "<&- >&- 2>&-", ">/dev/full", "| true", "2>&1 | true"]
LETTERS = "日 é \U0001f600 €"


def shell(words, redirection):
    """Run a command of dflash in a shell with redirected streams; returns the finished process."""
    line = f'set -o pipefail; "$@" {redirection}'
    words = ["bash", "-c", line, "bash", sys.executable, "-m", "dflash", *words]
    return subprocess.run(words, input=b"import os\n", check=False, capture_output=True, timeout=GUARD)


@pytest.mark.parametrize(
    ("command", "redirection"),
    [
        *(("info demo --json", redirection) for redirection in REDIRECTIONS),
        ("info nothing", "2>&-"),
        ("info nothing", "2>/dev/full"),
        ("--help", ">&-"),
        ("--help", "| true"),
        ("chat demo", "<&- >&-"),
        ("serve nothing --port 0", "2>&-"),
    ],
)
def test_streams_that_are_closed_or_full(command, redirection):
    words = command.split()
    done = shell([*words, *(SHORT if words[0] in ("run", "chat") else [])], redirection)
    assert b"Traceback" not in done.stderr + done.stdout
    assert b"Exception" not in done.stderr + done.stdout
    assert done.returncode in (0, 1)
    if redirection == ">/dev/full":
        assert done.stderr.endswith(b"dflash: the output can't be written: No space left on device\n")
        assert done.returncode == 1


def test_no_file_takes_the_place_of_a_closed_stream():
    """Otherwise what is printed later would go into it."""
    code = "import sys; from dflash.__main__ import main; main(['info', '/']); sys.exit(open('/dev/zero').fileno())"
    words = ["bash", "-c", f'{sys.executable} -c "$1" <&- >&- 2>&-', "bash", code]
    assert subprocess.run(words, check=False, timeout=GUARD).returncode > 2


@pytest.fixture
def streams(monkeypatch):
    """Replaces stdout, and stdin by bytes, in an encoding; returns what is written."""

    def replace(encoding, given=b""):
        written = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given), encoding=encoding))
        return written

    return replace


every_encoding = pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-8"])


@every_encoding
@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_every_letter_can_be_written(streams, encoding, options, tmp_path):
    model = tmp_path / LETTERS
    model.symlink_to(DEMO)
    written = streams(encoding)
    assert main(["info", str(model), "--device", "cpu", *options]) == 0
    text = written.getvalue().decode(encoding)
    if options:
        assert Path(json.loads(text)["model"]["files"][0]).name == LETTERS
    elif encoding == "utf-8":
        assert LETTERS in text
    else:
        assert r"\ud83d\ude00" in text


@every_encoding
def test_a_completion_of_any_letters(streams, encoding, lm):
    prompt = "日 é " * 6
    written = streams(encoding)
    assert main(["run", "demo", prompt, "--raw", *SHORT, "--json"]) == 0
    want = lm.generate(prompt, max_tokens=4)
    assert json.loads(written.getvalue().decode(encoding))["text"] == want.text


@pytest.mark.parametrize("command", ["run", "chat"])
@pytest.mark.parametrize(
    ("encoding", "given", "words"),
    [
        ("ascii", "é".encode(), "dflash: stdin: byte 0xc3 is not ascii; PYTHONIOENCODING=utf-8 reads the text as UTF-8"),
        ("utf-8", b"a\xff", "dflash: stdin: byte 0xff is not utf-8"),
    ],
)
def test_a_prompt_in_another_encoding_is_one_sentence(streams, capsys, command, encoding, given, words):
    streams(encoding, given)
    assert main([command, "demo", *SHORT]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == words
