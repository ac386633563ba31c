"""Models split over two GPUs: the bits of one, in passes of every kind and with every strategy."""

import os
import re
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from compare import assert_same_bits
from golden import recorded
from gpu_count import n_devices
from python_run import run_python
from split_models import plan_of
from split_script import open_split_file, outputs, sizes_of_passes

import dflash
from dflash.errors import OutOfMemory
from dflash.model.config import Config

NAMES = "demo", "qwen35-r2-untied-F32", "qwen35moe-r2-F16", "qwen3-dense-BF16", "qwen35-r3-tied-k-IQ4_XS"
NARROW = "llama-untied-Q8_0", "qwen2-tiny-Q8_0"
CASES = [("layer", name) for name in (*NAMES, *NARROW)] + [("tensor", name) for name in (*NAMES[:4], *NARROW)]
SETTINGS = {"slots": 12, "threads": 2, "chunk": 1024}


pytestmark = pytest.mark.skipif(n_devices() < 2, reason="fewer than two GPUs")


@pytest.fixture(scope="module")
def open_file(tmp_path_factory):
    """Opens a recorded model, with twice the heads where its one KV head can't be split."""

    return cache(lambda name: open_split_file(name, tmp_path_factory.mktemp("split")))


@pytest.fixture(params=CASES, ids="-".join)
def models(request, open_file):
    """One model on one GPU and on two, and tokens."""
    from dflash.kernels.gpu.devices import Devices
    from dflash.model.cuda.model import DeviceModel
    from dflash.model.cuda.split.model import SplitDeviceModel

    kind, name = request.param
    file = open_file(name)
    config = Config.from_gguf(file.metadata, file.tensors)
    one = DeviceModel(file, config, pages=24, **SETTINGS)
    plan = plan_of(file, config, kind, 2)
    two = SplitDeviceModel(file, config, plan, Devices((0, 1), direct=kind == "tensor"), **SETTINGS)
    known = np.arange(400) if name == "demo" else recorded(name)["tokens"]
    return one, two, np.random.default_rng(0).choice(known, 400).astype(np.int32)


def test_bits_of_one_gpu(models):
    one, two, tokens = models
    for i, (got, want) in enumerate(zip(outputs(two, tokens[:60]), outputs(one, tokens[:60]), strict=True)):
        assert_same_bits(f"output {i}", got, want)


def test_all_sizes_of_passes(models):
    """Prompts beside each other, and passes of every number of rows that has a graph."""
    one, two, tokens = models
    for i, (want, got) in enumerate(zip(sizes_of_passes(one, tokens), sizes_of_passes(two, tokens), strict=True)):
        assert_same_bits(f"pass {i}", got, want)


STRATEGIES = None, "dflash:7", "ddtree:15", "mtp:3", "lookup", "adaptive"
PROMPTS = "def fibonacci(n):", "The capital of France is", "import numpy as np\n\ndef"


@cache
def texts(**settings):
    found = []
    with dflash.load("demo", context=2048, sequences=4, **settings) as lm:
        for name in STRATEGIES:
            draft = {"draft": "demo-draft"} if name in ("dflash:7", "ddtree:15") else {}
            from dflash.serve.strategy_choice import named

            strategy = named(name, draft.get("draft"))
            for sampling in ({}, {"temperature": 0.9, "seed": 5}):
                made = lm.generate(list(PROMPTS), strategy=strategy, max_tokens=48, **sampling)
                found.append((name, [list(one.tokens) for one in made]))
    return found


@pytest.mark.parametrize("split", ["layer", "tensor"])
def test_every_strategy(split):
    want, got = texts(device="cuda"), texts(devices=("cuda:0", "cuda:1"), split=split)
    assert got == want


def test_a_device_without_room(monkeypatch):
    from dflash.model.cuda.split import load

    monkeypatch.setattr(load, "free_memory_of", lambda number: (1 << 40, 1 << 28)[number])
    with pytest.raises(OutOfMemory, match="cuda:1"):
        dflash.load("demo", devices=["cuda:0", "cuda:1"], split="tensor")


FAULT = """
import cupy, dflash, sys, threading
lm = dflash.load("demo", devices=["cuda:0", "cuda:1"], split=sys.argv[1], context=2048, sequences=2)
broken = cupy.RawKernel('extern "C" __global__ void broken(int* p) { p[1ll << 40] = 1; }', "broken")
def fail():
    with cupy.cuda.Device(1):
        broken((1,), (1,), (cupy.zeros(1, cupy.int32),))
errors = []
def ask(text):
    try:
        for piece in lm.generate(text, max_tokens=1500, stream=True):
            begun.set()
    except dflash.DFlashError as error:
        errors.append(str(error))
begun = threading.Event()
asking = [threading.Thread(target=ask, args=(text,)) for text in ("def a():", "def b():")]
[each.start() for each in asking]
begun.wait()
lm.call(fail)
[each.join() for each in asking]
print("errors", errors, flush=True)
try:
    lm.generate("x", max_tokens=4)
except dflash.DFlashError as error:
    print("then", type(error).__name__, error, flush=True)
lm.close()
print("closed", flush=True)
"""


@pytest.mark.parametrize("split", ["layer", "tensor"])
def test_a_fault_ends_all_requests(split):
    """A kernel that fails on the second GPU: every request ends with an error that names it, and the process can end."""
    root = Path(__file__).parents[2]
    done = run_python("-c", FAULT, split, env={"PYTHONPATH": os.pathsep.join([str(root), *sys.path])}, check=False)
    assert "errors" in done.stdout, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    errors = eval(lines[0].removeprefix("errors "))
    assert len(errors) == 2, done.stdout
    assert all(re.search("first failure: .*cuda:1: cudaErrorIllegalAddress", error) for error in errors), errors
    assert lines[-1] == "closed", done.stdout + done.stderr[-2000:]
