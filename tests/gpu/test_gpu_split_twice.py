"""Tensor splits whose two parts run on one GPU: the bits of a model that is not split, where there is only one GPU."""

from functools import cache

import numpy as np
import pytest
from compare import assert_same_bits
from golden import recorded
from one_gpu_twice import TwoRanks, few_blocks
from split_models import plan_of
from split_script import few_rows_in_turn, open_split_file, outputs, sizes_of_passes

from dflash.model.config import Config

NAMES = "demo", "qwen35-r2-untied-F32", "qwen3-dense-BF16", "qwen35moe-r2-F16"
SETTINGS = {"slots": 12, "threads": 2, "chunk": 1024}
SCRIPTS = {"trees and snapshots": outputs, "sizes of passes": sizes_of_passes, "few rows in turn": few_rows_in_turn}


@pytest.fixture(scope="module")
def open_file(tmp_path_factory):
    return cache(lambda name: open_split_file(name, tmp_path_factory.mktemp("split")))


@pytest.fixture(params=["in order", "overlapping"])
def launches(request, monkeypatch):
    few_blocks(monkeypatch, overlapping=request.param == "overlapping")


@pytest.fixture(params=NAMES)
def models(request, open_file, launches):
    """One model as a whole and in two parts, and tokens."""
    from dflash.model.cuda.model import DeviceModel
    from dflash.model.cuda.split.model import SplitDeviceModel

    name = request.param
    file = open_file(name)
    config = Config.from_gguf(file.metadata, file.tensors)
    one = DeviceModel(file, config, pages=24, **SETTINGS)
    two = SplitDeviceModel(file, config, plan_of(file, config, "tensor", 2), TwoRanks(), **SETTINGS)
    known = np.arange(400) if name == "demo" else recorded(name)["tokens"]
    return one, two, np.random.default_rng(0).choice(known, 400).astype(np.int32)


@pytest.mark.parametrize("script", SCRIPTS)
def test_bits_of_the_whole(models, script):
    one, two, tokens = models
    size = 60 if script == "trees and snapshots" else 400
    both = zip(SCRIPTS[script](two, tokens[:size]), SCRIPTS[script](one, tokens[:size]), strict=True)
    for i, (got, want) in enumerate(both):
        assert_same_bits(f"output {i}", got, want)
