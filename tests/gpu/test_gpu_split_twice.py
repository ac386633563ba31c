"""Tensor splits whose two parts run on one GPU: the bits of a model that is not split, where there is only one GPU."""

import os
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from compare import assert_same_bits
from golden import recorded
from one_gpu_twice import TwoRanks, few_blocks
from split_models import plan_of
from split_script import MOST_ROWS, few_rows_in_turn, open_split_file, outputs, sizes_of_passes

from dflash.kernels.gpu.capabilities import capabilities
from dflash.model.config import Config

SETTINGS = {"slots": 12, "threads": 2, "chunk": 1024}
SCRIPTS = {"trees and snapshots": outputs, "sizes of passes": sizes_of_passes, "few rows in turn": few_rows_in_turn}


@pytest.fixture(scope="module")
def open_file(tmp_path_factory):
    return cache(lambda name: open_split_file(name, tmp_path_factory.mktemp("split")))


RUNS = [
    *((name, "in order", script) for name in ("demo", "qwen35-r2-untied-F32") for script in SCRIPTS),
    *((name, "in order", "few rows in turn") for name in ("qwen3-dense-BF16", "llama-untied-Q8_0", "qwen2-tiny-Q8_0")),
    # more rows would need more blocks than one GPU has room for
    ("demo", "overlapping", "few rows in turn"),
    ("qwen35-r2-untied-F32", "overlapping", "few rows in turn"),
]
"""A model, whether its launches overlap, and a script."""


@pytest.mark.parametrize(("name", "launches", "script"), RUNS, ids=[", ".join(run) for run in RUNS])
def test_bits_of_the_whole(name, launches, script, open_file, monkeypatch):
    from dflash.model.cuda.model import DeviceModel
    from dflash.model.cuda.split.model import SplitDeviceModel

    if not capabilities().has_wgmma:
        pytest.skip("blocks of both parts fit one GPU by the rules of Hopper only")
    if launches == "overlapping" and os.environ.get("PYTEST_XDIST_WORKER"):
        pytest.skip("blocks of both parts must be on the GPU at the same time, so no other process may use it")
    few_blocks(monkeypatch, overlapping=launches == "overlapping")
    file = open_file(name)
    config = Config.from_gguf(file.metadata, file.tensors)
    one = DeviceModel(file, config, pages=24, **SETTINGS)
    of_parts = replace(config, pending=MOST_ROWS) if SCRIPTS[script] is outputs else config
    two = SplitDeviceModel(file, of_parts, plan_of(file, of_parts, "tensor", 2), TwoRanks(), **SETTINGS)
    known = np.arange(400) if name == "demo" else recorded(name)["tokens"]
    tokens = np.random.default_rng(0).choice(known, 60 if script == "trees and snapshots" else 400).astype(np.int32)
    both = zip(SCRIPTS[script](one, tokens), SCRIPTS[script](two, tokens), strict=True)
    for i, (want, got) in enumerate(both):
        assert_same_bits(f"output {i}", got, want)
