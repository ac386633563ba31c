"""Commands as processes of their own: signals, pipes, folders that can't be written."""

import json
import os
import signal
import subprocess
import urllib.request

import pytest
from hang_guard import GUARD
from processes import address, process


def test_an_interrupt_ends_run_and_keeps_the_text():
    with process("-m", "dflash", "run", "demo", "import os", "--raw", "--threads", "2", "--max-tokens", "30000") as child:
        first = child.stdout.read(20)
        child.send_signal(signal.SIGINT)
        rest, errors = child.communicate(timeout=GUARD)
    assert child.returncode == 130
    assert first + rest
    assert "Traceback" not in errors
    assert "cancelled" in errors


INTERRUPTED = """
import os, signal, sys, threading
from dflash.__main__ import main
from dflash.decode.session import Session
from dflash.model.model import Model

forward, cancel, cancelled, forwards = Model.forward, Session.cancel, threading.Event(), []

def interrupted_forward(self, spans, **settings):
    forwards.append(spans)
    if len(forwards) == 2:
        os.kill(os.getpid(), signal.SIGINT)
        assert cancelled.wait(%d)
    return forward(self, spans, **settings)

def noted_cancel(self):
    cancel(self)
    cancelled.set()

Model.forward, Session.cancel = interrupted_forward, noted_cancel
code = main(["run", "demo", "--raw", "--threads", "2"])
print(len(forwards), file=sys.stderr)
sys.exit(code)
"""


def test_an_interrupt_ends_the_prefill():
    """The interrupt arrives during the second of many chunks, and no other is begun after that one."""
    with process("-c", INTERRUPTED % GUARD, stdin=subprocess.PIPE) as child:
        _, errors = child.communicate("word " * 20000, timeout=GUARD)
    assert child.returncode == 130
    assert errors.splitlines()[-1] == "2"
    assert "Traceback" not in errors


def test_a_reader_that_leaves_is_no_error():
    with process("-m", "dflash", "run", "demo", "import os", "--raw", "--threads", "2", "--max-tokens", "2000") as child:
        child.stdout.read(5)
        child.stdout.close()
        errors = child.stderr.read()
        child.wait(timeout=GUARD)
    assert child.returncode == 0
    assert "Traceback" not in errors
    assert "Exception" not in errors


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_the_server_shuts_down_in_order(sign):
    with process("-m", "dflash.serve", "demo", "--port", "0", "--threads", "2", "--grace", "1") as child:
        url = address(child)
        with urllib.request.urlopen(f"{url}/health", timeout=GUARD) as answer:
            assert json.load(answer)["status"] == "ok"
        body = json.dumps({"prompt": "import os", "max_tokens": 20000, "stream": True}).encode()
        request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=GUARD) as answer:
            answer.readline()
            child.send_signal(sign)
            rest = answer.read().decode()
            child.wait(timeout=GUARD)
        errors = child.stderr.read()
    assert child.returncode == 0
    *_, error, end = rest.split("data: ")
    assert "shutting down" in error
    assert end.strip() == "[DONE]"
    assert "Traceback" not in errors


def test_the_server_says_what_it_can_not_load():
    with process("-m", "dflash.serve", "/no/such.gguf", "--port", "0") as child:
        _, errors = child.communicate(timeout=GUARD)
    assert child.returncode == 1
    assert errors.splitlines()[-1].startswith("dflash: /no/such.gguf")


COMPILED = """
import sys
from numba.core.event import install_recorder
from dflash.__main__ import main
with install_recorder("numba:compile") as compiled:
    main(sys.argv[1:])
print()
print(len(compiled.buffer))
"""


def test_info_compiles_nothing(tmp_path):
    with process("-c", COMPILED, "info", "demo", env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)}) as child:
        out, _ = child.communicate(timeout=GUARD)
    assert "qwen35" in out
    assert out.splitlines()[-1] == "0"
    assert not list(tmp_path.rglob("*.nbc"))


@pytest.mark.parametrize("strategy", ["plain", "dflash"])
def test_a_run_after_warmup_compiles_nothing(strategy):
    """`warmup` may compile what no test before has, `run` leaves a part to other processes."""
    command = "run", "demo", "word " * 40, "--threads", "2", "--max-tokens", "40"
    for words in (("warmup", "demo", "--device", "cpu"), command):
        with process("-c", COMPILED, *words, "--strategy", strategy) as child:
            out, errors = child.communicate(timeout=GUARD)
        assert child.returncode == 0, errors
    assert out.splitlines()[-1] == "0"
