"""Disks that are full and pipes that nobody reads: requests go on, with one warning and a count of what is lost."""

import errno
import json
import logging
import os
import resource
import signal
import threading
import urllib.request
from contextlib import suppress
from types import SimpleNamespace

import pytest
from hang_guard import GUARD, wait_until
from processes import process

from dflash.serve.admin import access_log, debug_log
from dflash.serve.admin.access_log import LOST, AccessLogHandler
from dflash.serve.admin.debug_log import DebugLog, Exchange
from dflash.serve.admin.request_record import RequestRecord

SERVER = "import sys; from dflash.cli.serve import main; sys.exit(main(sys.argv[1:]))"
PROMPT = "The quick brown fox jumps over the lazy dog. "


@pytest.fixture
def lost():
    """What the logs have lost since the beginning of the test."""
    before = LOST.copy()
    return lambda: {name: LOST[name] - before[name] for name in LOST}


def exchange(text):
    made = Exchange(RequestRecord("id", "POST", "/v1/completions", 200))
    made.request.add(text.encode())
    return made


RECORD = logging.LogRecord("dflash.access", logging.INFO, "", 0, "a line", None, None)


def test_a_line_that_the_disk_does_not_take_is_no_part_of_the_debug_log(tmp_path, monkeypatch, caplog, lost):
    """A disk that becomes full takes a part of the line: that part is removed again."""
    path, write = tmp_path / "debug.jsonl", os.write

    def fills(file, data):
        if b"second" in data:
            return write(file, data[:10])
        if not data.startswith(b'{"time"'):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data)

    monkeypatch.setattr(debug_log.os, "write", fills)
    log = DebugLog(path, 1 << 20)
    for text in ("first", "second", "third"):
        log.write(exchange(text))
    log.close()
    assert [json.loads(line)["request"] for line in path.read_text().splitlines()] == ["first"]
    (warning,) = caplog.messages
    assert "No space left on device" in warning
    assert lost() == {"access": 0, "debug": 2}


def test_a_disk_that_hangs_keeps_a_bounded_number_of_exchanges(tmp_path, monkeypatch, lost):
    go_on = threading.Event()
    monkeypatch.setattr(debug_log.DebugLog, "_write", lambda *_: go_on.wait(GUARD))
    log = DebugLog(tmp_path / "debug.jsonl", 1 << 20)
    for _ in range(100):
        log.write(exchange("a"))
    assert lost()["debug"] == 100 - debug_log._MAX_WAITING
    go_on.set()
    log.close()


def test_a_pipe_that_nobody_reads_holds_no_request(monkeypatch, caplog, lost):
    monkeypatch.setattr(access_log, "MAX_WAITING", 50)
    monkeypatch.setattr(access_log, "_CLOSING", 0.01)
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        handler = AccessLogHandler(stream)
        n = 0
        while not lost()["access"]:
            handler.emit(RECORD)
            n += 1
        assert n > 50
        assert len(caplog.messages) == 1
        handler.end()
        os.set_blocking(reading, False)
        while handler._thread.is_alive():  # it ends as soon as somebody reads
            with suppress(BlockingIOError):
                os.read(reading, 1 << 20)
    os.close(reading)


def test_lines_go_on_when_the_disk_has_space_again(caplog, lost):
    written, full = [], [True]

    def write(text):
        if full[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(text)

    handler = AccessLogHandler(SimpleNamespace(write=write, flush=lambda: None))
    handler.emit(RECORD)
    handler.emit(RECORD)
    wait_until(lambda: lost()["access"] == 2)
    full[0] = False
    handler.emit(RECORD)
    handler.end()
    assert written == ["a line\n"]
    assert len(caplog.messages) == 1


def test_a_server_on_a_full_disk(tmp_path):
    """The process may write no file beyond a size: both logs and the states of the prefix cache end there."""
    errors, debug, states = tmp_path / "stderr", tmp_path / "debug.jsonl", tmp_path / "states"
    words = ["demo", "--port", "0", "--threads", "1", "--context", "2048", "--sequences", "1", "--prefix-cache-mib", "16"]
    words += ["--prefix-cache-folder", str(states), "--debug-log", str(debug)]

    def line():
        assert child.poll() is None, errors.read_text()
        return [line for line in errors.read_text().splitlines() if line.startswith("dflash: http://")]

    def send(path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(line()[0].split()[1] + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=GUARD) as answer:
            return answer.read().decode()

    def counted():
        metrics = [row for row in send("/metrics").splitlines() if row.startswith("dflash:")]
        names = {"debug": 'log="debug"', "access": 'log="access"', "disk": "disk_lost_total"}
        return {name: sum(float(row.split()[-1]) for row in metrics if text in row) for name, text in names.items()}

    with errors.open("w") as file, process("-c", SERVER, *words, stderr=file) as child:
        wait_until(line)
        full = errors.stat().st_size + 300
        resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (full, full))
        n = 0
        while not all(counted().values()):
            n += 1
            assert n < 20
            body = json.loads(send("/v1/completions", {"prompt": f"{n} {PROMPT * 40}", "max_tokens": 2}))
            assert body["usage"]["completion_tokens"] == 2
        assert json.loads(send("/health"))["status"] == "ok"
        child.send_signal(signal.SIGTERM)
        assert child.wait(GUARD) == 0
    assert errors.stat().st_size <= full
    assert not list(states.iterdir())
    assert all(json.loads(line) for line in debug.read_text().splitlines())
