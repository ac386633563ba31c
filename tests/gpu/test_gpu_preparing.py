"""Drafts of a GPU that are loaded and measured while texts are written: graphs are captured, and no token differs."""

import threading

import pytest

import dflash
from dflash.decode.drafters.adaptive.drafter import Adaptive
from dflash.decode.drafters.dflash import DFlash
from dflash.decode.drafters.draft_model import DraftModel
from dflash.decode.drafters.mtp import MTP
from dflash.decode.drafters.prompt_lookup import PromptLookup
from dflash.kernels.gpu import device

PROMPTS = ["def fibonacci(n):\n", "Once upon a time", "import heapq\n"]
DRAFTERS = [
    DFlash(),
    DFlash(draft_vocab=4096),
    MTP(),
    MTP(draft_vocab=4096),
    DraftModel("demo"),
    Adaptive(DFlash(), MTP(), PromptLookup()),
]


@pytest.fixture
def lm():
    with dflash.load("demo", device="cuda", context=2048, sequences=6) as lm:
        yield lm


@pytest.mark.parametrize("strategy", ["plain", "dflash", "mtp:3", "first(lookup, mtp)"])
def test_texts_that_are_written_while_drafts_are_prepared(lm, strategy):
    settings = {"max_tokens": 400, "strategy": strategy, "temperature": 0.7, "seed": 5}
    truths = [text.tokens for text in lm.generate(PROMPTS, **settings)]
    done, found, errors = threading.Event(), [], []

    def write():
        try:
            while not done.is_set() or not found:
                found.append([text.tokens for text in lm.generate(PROMPTS, **settings)])
        except BaseException as error:
            errors.append(error)

    writing = threading.Thread(target=write)
    writing.start()
    try:
        for drafter in DRAFTERS:
            lm.prepare(drafter)
    finally:
        done.set()
        writing.join()
    assert not errors
    assert all(each == truths for each in found)
    for drafter in DRAFTERS:
        assert [text.tokens for text in lm.generate(PROMPTS, **{**settings, "strategy": drafter})] == truths


def test_a_capture_goes_on_while_another_thread_takes_memory(lm):
    """Allocations, copies and waiting for a stream or the device, as while a draft is loaded."""
    stop, errors, rounds = threading.Event(), [], []

    def load():
        try:
            while not stop.is_set():
                arrays = [device.zeros(1 << 20) for _ in range(4)]
                device.copy(arrays[0], arrays[1])
                device.synchronize()
                del arrays
                device.release()
                rounds.append(1)
        except BaseException as error:
            errors.append(error)

    loading = threading.Thread(target=load)
    loading.start()
    try:
        for depth in range(2, 9):
            lm.generate(PROMPTS, max_tokens=30, strategy=f"mtp:{depth}")
            lm.generate(PROMPTS, max_tokens=30, strategy=f"ddtree:{depth}")
    finally:
        stop.set()
        loading.join()
    assert rounds
    assert not errors
