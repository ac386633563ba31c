"""Exit of the server process after an engine failure and after signals."""

import json
import signal
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from hang_guard import GUARD
from loops import BOTH_LOOPS, HIDDEN
from processes import address, process

POISON = 4242
"""Token whose forward executes `FAULT`."""

SERVER = """
import sys, time
from dflash.errors import DeviceLost, KernelError
from dflash.model.model import Model

forward = Model.forward
bad = [0]

def faulty(self, spans, **settings):
    bad[0] += any(%(poison)d in span.tokens for span in spans)
    if bad[0]:
        %(fault)s
    return forward(self, spans, **settings)

Model.forward = faulty

from dflash.cli.serve import main

sys.exit(main(["demo", "--port", "0", "--threads", "1", "--context", "4096", "--grace", "60"]))
"""


@pytest.fixture
def serving(loop):
    """Starts a server whose forwards do `fault` from the first one on that reads `POISON`; yields process and address."""

    @contextmanager
    def start(fault):
        code = HIDDEN[loop] + SERVER % {"poison": POISON, "fault": fault}
        with process("-c", code, stdout=None) as child:
            yield child, address(child)

    return start


def opened(url, **body):
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    return urllib.request.urlopen(request, timeout=GUARD)


def status_of(url, **body):
    try:
        with opened(url, **body) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_a_lost_device_ends_the_process_after_everyone_has_an_answer(serving):
    with serving("raise DeviceLost('CUDA_ERROR_ILLEGAL_ADDRESS')") as (child, url):
        with opened(url, prompt="import os", max_tokens=4000, stream=True) as stream:
            stream.readline()
            status, body = status_of(url, prompt=[POISON, 1], max_tokens=5)
            rest = stream.read().decode()
        _, errors = child.communicate(timeout=GUARD)
    assert (status, body["error"]["code"]) == (503, "engine_failed")
    *_, failure, done = rest.split("data: ")
    assert "engine_failed" in failure
    assert done == "[DONE]\n\n"
    assert child.returncode == 1
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in errors.splitlines()[-1]
    assert errors.splitlines()[-1].startswith("dflash: the server has stopped because its engine failed")


def test_forwards_that_fail_for_ever_end_the_process(serving):
    with serving("raise KernelError('the device said no')") as (child, url):
        statuses = [status_of(url, prompt=[POISON, 1], max_tokens=5)[0] for _ in range(3)]
        child.communicate(timeout=GUARD)
    assert statuses == [500] * 3
    assert child.returncode == 1


@pytest.mark.parametrize(
    ("loop", "sign"), [("asyncio", signal.SIGTERM), ("uvloop", signal.SIGINT)], indirect=["loop"], scope="session"
)
def test_a_second_signal_ends_the_process_at_once(serving, sign):
    with serving("time.sleep(1000)") as (child, url), ThreadPoolExecutor(1) as pool:
        with opened(url, prompt="import os", max_tokens=4000, stream=True) as stream:
            stream.readline()
            hanging = pool.submit(status_of, url, prompt=[POISON, 1], max_tokens=5)
            child.send_signal(sign)
            while "Shutting down" not in child.stderr.readline():
                assert child.poll() is None
            child.send_signal(sign)
            child.wait(timeout=GUARD)
        assert hanging.exception(GUARD) is not None
    assert child.returncode == -sign


@BOTH_LOOPS
def test_a_signal_lets_open_streams_end(serving):
    with serving("pass") as (child, url):
        with opened(url, prompt="import os", max_tokens=300, stream=True) as stream:
            stream.readline()
            child.send_signal(signal.SIGTERM)
            while "Shutting down" not in child.stderr.readline():
                assert child.poll() is None
            *_, last, done = stream.read().decode().split("data: ")
        child.communicate(timeout=GUARD)
    assert done == "[DONE]\n\n"
    assert json.loads(last)["choices"][0]["finish_reason"] in ("length", "stop")
    assert child.returncode == 0
