"""A model split over labels on the CPU has the bits of one device: the rows, heads, layers and pages of every plan."""

from dataclasses import replace

import numpy as np
import pytest
from compare import assert_same_bits
from golden import path_of, recorded
from split_models import LayerSplitModel, TensorSplitModel
from split_script import MOST_ROWS, outputs
from twice_the_heads import write_twice_the_heads

from dflash.model.config import Config
from dflash.model.gguf.file import GGUFFile
from dflash.model.model import Model

DOUBLED = ("qwen35-r2-untied-F32", "qwen35moe-r2-F16", "qwen3-dense-BF16", "qwen35-r3-tied-k-IQ4_XS")
SPLITS = {"layer": LayerSplitModel, "tensor": TensorSplitModel}
NARROW = "llama-untied-Q8_0", "qwen2-tiny-Q8_0"
CASES = [("layer", name) for name in DOUBLED] + [("tensor", name) for name in (*DOUBLED[:3], *NARROW)]


@pytest.fixture(scope="module")
def open_file(tmp_path_factory):
    """Opens a recorded model, with twice the heads where its one KV head can't be split."""
    files = {}

    def get(name):
        if name not in files:
            path = path_of(name)
            if name.endswith(("F32", "F16")) and "dense" not in name:
                path = write_twice_the_heads(name, tmp_path_factory.mktemp("split") / f"{name}.gguf")
            files[name] = GGUFFile.open(path)
        return files[name]

    yield get
    for file in files.values():
        file.close()


@pytest.fixture(params=CASES, ids="-".join)
def models(request, open_file):
    """One model on one device, and on two that store only as many pending rows as `outputs` has."""
    kind, name = request.param
    file = open_file(name)
    config = Config.from_gguf(file.metadata, file.tensors)
    one = Model(file, config, pages=24, slots=12, threads=1)
    two = SPLITS[kind](file, replace(config, pending=MOST_ROWS), 2)
    one.tokens = np.random.default_rng(0).choice(recorded(name)["tokens"], 60).astype(np.int32)
    return one, two


def test_bits_of_one_device(models):
    one, two = models
    tokens = one.tokens
    before = two.pools.free_pages, two.pools.free_slots
    for i, (got, want) in enumerate(zip(outputs(two, tokens), outputs(one, tokens), strict=True)):
        assert_same_bits(f"output {i}", got, want)
    assert (two.pools.free_pages, two.pools.free_slots) == before


def test_parts_hold_the_whole_memory(models):
    """The devices together have the pages and states of one device, and no device has them all."""
    one, two = models
    assert two.pools.page_bytes == one.pools.page_bytes
    whole = sum(array.nbytes for array in one.pools.slot_views(0))
    assert sum(array.nbytes for array in two.pools.slot_views(0)) == whole
    own = [sum(array.nbytes for array in part._states) + part.k.nbytes for part in two.pools.parts]
    assert max(own) < sum(own)
