"""The line that is shown while a model is loaded."""

import io
import threading
from types import SimpleNamespace

import pytest
from hang_guard import GUARD

from dflash.generation import progress
from dflash.kernels import compiling
from dflash.kernels.compiling import Count


def state(done, waiting):
    """Return a count of kernels that all have the same size."""
    return Count(done, waiting, 2.0 * done, 2.0 * waiting)


class Stream(io.StringIO):
    """A stream that records each write, and that may be a terminal of some width."""

    def __init__(self, width=0):
        super().__init__()
        self.width, self.written = width, threading.Event()

    def isatty(self):
        return self.width > 0

    def fileno(self):
        return 99

    def write(self, text):
        self.written.set()
        return super().write(text)


@pytest.fixture
def made(monkeypatch):
    """Make a line that began at second 0, with a function that sets the kernels."""
    kernels = [state(5, 0)]
    monkeypatch.setattr(progress, "count", lambda: kernels[-1])
    monkeypatch.setattr(progress, "monotonic", lambda: 0.0)

    def make(width=0, name="demo"):
        file = Stream(width)
        monkeypatch.setattr(progress.os, "get_terminal_size", lambda _: SimpleNamespace(columns=width))
        line = progress._Line(name, file, redrawn=width > 0)
        return line, file, kernels.append

    return make


def shown(file):
    """Return what a terminal shows: the characters after each carriage return replace those before."""
    screen = [" "] * 200
    for part in file.getvalue().split("\r"):
        screen[: len(part)] = part
    return "".join(screen).rstrip()


def test_a_terminal_shows_what_is_done_and_what_is_left(made):
    line, file, kernels = made(100)
    line.begin("tokenizer")
    line.tick(1.0)
    assert shown(file) == "loading demo: tokenizer (0:01)"
    kernels(state(5, 40))
    line.tick(2.0)
    kernels(state(15, 30))
    line.tick(12.0)
    assert shown(file) == "compiling kernels, once per machine: 10 of 40, about 30 s left (0:12)"
    line.tick(73.0)
    assert "1:13" in shown(file)
    line.close()
    assert shown(file) == ""
    assert "\n" not in file.getvalue()


@pytest.mark.parametrize("width", [20, 44, 60, 80, 200])
def test_a_line_never_wraps_and_has_no_escape_codes(made, width):
    line, file, kernels = made(width, name="a-model-with-a-name-of-more-than-forty-letters.gguf")
    line.begin("first forward")
    for now, kernels_now in ((1.0, state(5, 0)), (5.0, state(5, 96)), (300.0, state(60, 41)), (301.0, state(101, 0))):
        kernels(kernels_now)
        line.tick(now)
    line.close()
    parts = file.getvalue().split("\r")
    assert max(map(len, parts)) < width
    assert all(part.isprintable() for part in parts)
    assert "55 of 96" in file.getvalue()


def test_a_log_gets_a_line_for_kernels_and_then_one_every_ten_seconds(made):
    line, file, kernels = made()
    line.begin("header")
    line.tick(1.0)
    assert file.getvalue() == ""
    kernels(state(5, 4))
    for second in range(2, 25):
        line.tick(float(second))
    kernels(state(9, 0))
    for second in range(25, 40):
        line.tick(float(second))
    line.close()
    lines = file.getvalue().splitlines()
    assert len(lines) == 5
    assert lines[0] == "dflash: compiling kernels, once per machine: 0 of 4 (0:02)"
    assert lines[-1] == "dflash: 4 kernels compiled in 22 s, once per machine"  # without the rest of the load


def test_a_log_of_a_start_with_a_full_cache_gets_nothing(made):
    line, file, _ = made()
    for second in range(10):
        line.begin("memory")
        line.tick(float(second))
    line.close()
    assert file.getvalue() == ""


def test_a_log_of_a_long_load_gets_lines(made):
    line, file, _ = made()
    line.begin("weights")
    for second in range(25):
        line.tick(float(second))
    assert file.getvalue() == "dflash: loading demo: weights (0:10)\ndflash: loading demo: weights (0:20)\n"


def test_a_log_says_that_a_file_is_downloaded_before_it_is_read(made):
    line, file, _ = made(name="org/repo")
    for second in range(15):
        line.tick(float(second))
    assert file.getvalue() == "dflash: downloading org/repo (0:10)\n"


def test_control_characters_of_a_name_are_replaced(made):
    line, file, _ = made(80, name="\x1b[31mred")
    line.begin("header")
    line.tick(1.0)
    assert "\x1b" not in file.getvalue()


def test_a_closed_stream_ends_the_line(made):
    line, file, _ = made(80)
    line.begin("header")
    file.close()
    line.tick(1.0)
    assert line.ended.is_set()


@pytest.mark.parametrize(
    ("width", "term", "notebook", "given", "want"),
    [
        (80, "xterm", False, None, "redrawn"),
        (80, "dumb", False, None, "log"),
        (0, "xterm", False, None, None),
        (0, "xterm", True, None, "redrawn"),
        (0, "xterm", False, True, "log"),
        (80, "xterm", False, False, None),
    ],
)
def test_where_a_line_is_shown(monkeypatch, width, term, notebook, given, want):
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(progress, "in_notebook", lambda: notebook)
    with progress.progress_line("demo", shown=given, file=Stream(width)) as report:
        kind = report and ("redrawn" if report.__self__._redrawn else "log")
    assert kind == want


def test_the_line_moves_while_the_caller_works(monkeypatch):
    monkeypatch.setattr(progress, "_DELAY", 0.001)
    monkeypatch.setattr(progress, "_TICK", 0.001)
    monkeypatch.setenv("TERM", "xterm")
    file = Stream(80)
    with progress.progress_line("demo", file=file) as report:
        report("header")
        for _ in range(3):
            file.written.clear()
            assert file.written.wait(GUARD)
    assert not [thread for thread in threading.enumerate() if thread.name == "dflash-progress"]


def test_kernels_are_counted_also_if_one_fails():
    before = compiling.count()
    with compiling.compiling():
        assert compiling.count()[:2] == (before.done, before.waiting + 1)
    assert compiling.count()[:2] == (before.done + 1, before.waiting)
    with pytest.raises(ValueError, match="bad"), compiling.compiling():
        raise ValueError("bad")
    assert compiling.count()[:2] == (before.done + 1, before.waiting)
