"""Text from a model or its file can't control the terminal."""

import io
import sys
import unicodedata
from pathlib import Path
from types import SimpleNamespace

import pytest

from dflash.__main__ import main
from dflash.cli.answer import show
from dflash.cli.terminal import put, say, table, visible, wrapped
from dflash.generation.parsers.events import ContentDelta

GOLDEN = Path(__file__).parent.parent / "data" / "golden" / "qwen35-r2-untied" / "qwen35-r2-untied-Q4_0.gguf"
CLEAR, TITLE, C1 = "\x1b[2J", "\x1b]0;title\x07", "\x9b31m"


class Output(io.StringIO):
    """A stdout or stderr that is a terminal or is none."""

    def __init__(self, terminal):
        super().__init__()
        self.isatty = lambda: terminal


both = pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])


def redirect(monkeypatch, terminal):
    """Replace both streams; a fixture would do it too early, before pytest replaces them itself."""
    streams = SimpleNamespace(out=Output(terminal), err=Output(terminal), terminal=terminal)
    monkeypatch.setattr(sys, "stdout", streams.out)
    monkeypatch.setattr(sys, "stderr", streams.err)
    return streams


def controls(text):
    return {letter for letter in text if unicodedata.category(letter) == "Cc"} - set("\n\t")


def stream_of(*texts):
    """A stream whose prompt has been read."""

    class Stream(list):
        n_prompt = 1

    step = SimpleNamespace(prefilled=0)
    return Stream(SimpleNamespace(events=[ContentDelta(text)], step=step) for text in texts)


def test_every_control_character_is_replaced():
    text = "".join(map(chr, range(0x100)))
    assert controls(text)
    assert not controls(visible(text))
    assert visible(f"{CLEAR}{TITLE}{C1}\r\x7f") == "^[[2J^[]0;title^G\ufffd31m^M^?"


def test_all_other_text_stays():
    text = "a\n\tb ä 日本 \U0001f469\u200d\U0001f4bb \xa0\ufffd" + "".join(chr(code) for code in range(0x20, 0x7F))
    assert visible(text) == text


@both
def test_escape_sequences_of_generated_text_are_made_visible(monkeypatch, terminal):
    """Also where an escape sequence is cut between two pieces."""
    output = redirect(monkeypatch, terminal)
    pieces = ["one\n", "\x1b", "[2J", "two", C1]
    show(stream_of(*pieces))
    assert output.out.getvalue() == ("one\n^[[2Jtwo\ufffd31m\n" if output.terminal else "".join(pieces) + "\n")


@both
def test_control_characters_are_shown_on_a_terminal_and_passed_on_in_a_pipe(monkeypatch, terminal):
    output = redirect(monkeypatch, terminal)
    say(f"a{CLEAR}")
    put(f"b{TITLE}")
    assert output.err.getvalue() == ("a^[[2J\n" if output.terminal else f"a{CLEAR}\n")
    assert output.out.getvalue() == ("b^[]0;title^G\n" if output.terminal else f"b{TITLE}\n")


@both
@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_info_of_a_file_with_escapes_in_its_metadata(monkeypatch, terminal, tmp_path, options):
    output = redirect(monkeypatch, terminal)
    name = b"general.name"
    content = GOLDEN.read_bytes()
    start = content.index(name) + len(name) + 12
    old = content[start : start + int.from_bytes(content[start - 8 : start], "little")]
    new = (CLEAR + C1).encode()[: len(old)].ljust(len(old), b"x")
    path = tmp_path / "x.gguf"
    path.write_bytes(content[:start] + new + content[start + len(old) :])
    assert main(["info", str(path), "--device", "cpu", *options]) == 0
    shown = output.out.getvalue()
    if output.terminal:
        assert not controls(shown)
    else:
        assert controls(shown) == ({"\x9b"} if options else {"\x1b", "\x9b"})


@both
def test_an_error_that_quotes_a_name(monkeypatch, terminal):
    output = redirect(monkeypatch, terminal)
    assert main(["info", f"{CLEAR}.gguf"]) == 1
    assert output.err.getvalue().startswith("dflash: ^[[2J.gguf" if output.terminal else f"dflash: {CLEAR}.gguf")


@pytest.mark.parametrize("columns", [44, 60])
def test_info_wraps_between_words(monkeypatch, columns):
    output = redirect(monkeypatch, terminal=True)
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["info", str(GOLDEN), "--device", "cpu"]) == 0
    narrow = output.out.getvalue()
    assert max(map(len, narrow.splitlines())) <= columns
    assert {"model", "strategies", ""} <= {line[:15].strip() for line in narrow.splitlines()}
    output = redirect(monkeypatch, terminal=False)
    assert main(["info", str(GOLDEN), "--device", "cpu"]) == 0
    wide = output.out.getvalue()
    assert "".join(narrow.split()) == "".join(wide.split())
    assert set(narrow.replace("/", "/ ").split()) == set(wide.replace("/", "/ ").split())


ROWS = [[f"column {i}" if row == 0 else f"{row}{i}" * (1 + i % 3) for i in range(13)] for row in range(4)]


@pytest.mark.parametrize("columns", [None, 200, 80, 60, 44, 30])
def test_a_table_folds_between_its_columns(monkeypatch, columns):
    """Every cell stands in one of the tables, each of which fits and begins with the first column."""
    monkeypatch.setattr("dflash.cli.terminal.width", lambda _: columns)
    parts = table(ROWS).split("\n\n")
    if columns is None:
        assert len(parts) == 1
    assert max(len(line) for part in parts for line in part.splitlines()) <= (columns or 1000)
    cells = [[[cell.strip() for cell in line.split("|")[1:-1]] for line in part.splitlines()] for part in parts]
    for part in cells:
        del part[1]
        assert [row[0] for row in part] == [row[0] for row in ROWS]
    assert [[cell for part in cells for cell in part[i][1:]] for i in range(4)] == [row[1:] for row in ROWS]


@pytest.mark.parametrize("columns", [44, 60])
def test_a_line_breaks_between_words(monkeypatch, columns):
    text = "dflash: a sentence that is long enough to be broken several times, and --option=value that stays whole"
    assert wrapped(text) == text
    monkeypatch.setattr("dflash.cli.terminal.width", lambda _: columns)
    lines = wrapped(text).splitlines()
    assert max(map(len, lines)) <= columns
    assert all(line.startswith("  ") for line in lines[1:])
    assert " ".join(line.strip() for line in lines) == text
