"""Commands as processes of their own: signals, pipes, folders that can't be written."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager

import pytest


@contextmanager
def process(*words, **settings):
    """Start `python -m ...`; what is still running afterwards is killed.

    It takes interrupts even where tests run in the background, whose children would inherit that they are ignored.
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    was = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        child = subprocess.Popen([sys.executable, "-m", *words], **pipes, **settings)
    finally:
        signal.signal(signal.SIGINT, was)
    with child:
        try:
            yield child
        finally:
            child.kill()


def test_an_interrupt_ends_run_and_keeps_the_text():
    with process("dflash", "run", "demo", "import os", "--raw", "--threads", "2", "--max-tokens", "30000") as child:
        first = child.stdout.read(20)
        child.send_signal(signal.SIGINT)
        rest, errors = child.communicate(timeout=10)
    assert child.returncode == 130
    assert first + rest
    assert "Traceback" not in errors
    assert "cancelled" in errors


def test_an_interrupt_ends_the_reading_of_a_prompt():
    with process("dflash", "run", "demo", "--raw", "--threads", "2", stdin=subprocess.PIPE) as child:
        child.stdin.write("word " * 20000)
        child.stdin.close()
        time.sleep(2.5)
        child.send_signal(signal.SIGINT)
        began = time.monotonic()
        child.wait(timeout=10)
        errors = child.stderr.read()
    assert time.monotonic() - began < 4
    assert child.returncode == 130
    assert "Traceback" not in errors


def test_a_reader_that_leaves_is_no_error():
    with process("dflash", "run", "demo", "import os", "--raw", "--threads", "2", "--max-tokens", "2000") as child:
        child.stdout.read(5)
        child.stdout.close()
        errors = child.stderr.read()
        child.wait(timeout=20)
    assert child.returncode == 0
    assert "Traceback" not in errors
    assert "Exception" not in errors


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_the_server_shuts_down_in_order(sign):
    with process("dflash.serve", "demo", "--port", "0", "--threads", "2", "--grace", "1") as child:
        lines = []
        while not (lines and "http://" in lines[-1]):
            lines.append(child.stderr.readline())
            assert lines[-1], lines
        url = lines[-1].split("running on ")[1].split()[0]
        with urllib.request.urlopen(f"{url}/health", timeout=10) as answer:
            assert json.load(answer)["status"] == "ok"
        body = json.dumps({"prompt": "import os", "max_tokens": 20000, "stream": True}).encode()
        request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.readline()
            child.send_signal(sign)
            rest = answer.read().decode()
            child.wait(timeout=60)
        errors = child.stderr.read()
    assert child.returncode == 0
    assert "shutting down" in rest.split("data: ")[-1]
    assert "Traceback" not in errors


def test_the_server_says_what_it_can_not_load():
    with process("dflash.serve", "/no/such.gguf") as child:
        _, errors = child.communicate(timeout=10)
    assert child.returncode == 1
    assert errors.splitlines()[-1].startswith("dflash: /no/such.gguf")


def test_info_compiles_nothing(tmp_path):
    settings = {"env": {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}}
    before = os.times().children_user
    with process("dflash", "info", "demo", **settings) as child:
        out, _ = child.communicate(timeout=20)
    assert "qwen35" in out
    assert os.times().children_user - before < 5
    assert not list(tmp_path.rglob("*.nbc"))
