"""Plans of a model on several devices: every row, layer and byte has its place, and what does not fit is refused."""

from dataclasses import replace

import numpy as np
import pytest
from golden import path_of
from split_models import plan_of

from dflash.cli.info import as_text
from dflash.errors import OutOfMemory, RequestError, Unsupported
from dflash.kernels.gpu import device
from dflash.model.config import Config
from dflash.model.describe import overview
from dflash.model.gguf.file import GGUFFile
from dflash.model.loading.hub import resolve
from dflash.model.loading.settings import LoadSettings
from dflash.model.loading.target import load_model, split_overview
from dflash.model.split.names import device_kind, device_number, device_numbers
from dflash.model.split.pools import SplitPools
from dflash.model.split.shards import Columns, Shard, ShardWeights, shard_config
from dflash.model.weights import Weights

MIB = 1 << 20


@pytest.fixture(scope="module")
def demo():
    with GGUFFile.open(resolve("demo")) as file:
        yield file, Config.from_gguf(file.metadata, file.tensors)


def bytes_of(file, config):
    return sum(tensor.device_bytes for tensor in Weights(file, config).tensors)


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_layers_are_consecutive_and_complete(demo, n):
    plan = plan_of(*demo, "layer", n)
    layers = [part.layers for part in plan.devices]
    assert [i for part in layers for i in part] == list(range(8))
    assert all(layers)
    assert sum(part.weights for part in plan.devices) == bytes_of(*demo)


def test_a_fuller_device_gets_fewer_layers(demo):
    even = plan_of(*demo, "layer", 2, free=[600 * MIB, 600 * MIB], sequences=2, pages=None)
    uneven = plan_of(*demo, "layer", 2, free=[600 * MIB, 200 * MIB], sequences=2, pages=None)
    assert len(uneven.devices[1].layers) < len(even.devices[1].layers)
    for plan in (even, uneven):
        assert all(part.total <= part.free for part in plan.devices)


@pytest.mark.parametrize("pending", [64, 16])
def test_memory_is_as_planned(demo, pending):
    """The pools of every device take the planned bytes."""
    from contextlib import nullcontext

    for kind in ("layer", "tensor"):
        plan = plan_of(demo[0], replace(demo[1], pending=pending), kind, 2, sequences=3, pages=None, free=1 << 30)
        pools = SplitPools(plan, [nullcontext()] * 2, slots=4)
        for part, planned in zip(pools.parts, plan.devices, strict=True):
            assert part.k.nbytes + part.v.nbytes == planned.pages
            arrays = [array for memory in (*part.conv, *part.delta) for array in vars_of(memory)]
            assert sum(array.nbytes for array in arrays) == planned.states
        assert pools.pages == plan.n_pages


def vars_of(memory):
    return [getattr(memory, name) for name in memory.__slots__]


@pytest.mark.parametrize("kind", ["layer", "tensor"])
def test_a_device_without_room_is_named(demo, kind):
    with pytest.raises(OutOfMemory, match="cuda:1"):
        plan_of(*demo, kind, 2, free=[1 << 30, 2 * MIB])


def test_pages_follow_the_smallest_device(demo):
    """Every device has memory for all pages of its layers."""
    roomy, tight = (
        plan_of(*demo, "tensor", 2, free=free, sequences=2, pages=None) for free in (1 << 30, [1 << 30, 140 * MIB])
    )
    assert 1 <= tight.n_pages < roomy.n_pages
    assert tight.devices[1].total <= 140 * MIB


def test_more_devices_than_layers(demo):
    with pytest.raises(RequestError, match="9 devices for 8 layers"):
        plan_of(*demo, "layer", 9)


def test_heads_that_do_not_divide(demo):
    with pytest.raises(Unsupported, match="3 devices can't share 2 KV heads; use split='layer'"):
        plan_of(*demo, "tensor", 3)
    with GGUFFile.open(path_of("qwen35-r2-mtp-F16")) as file, pytest.raises(Unsupported, match="1 KV heads"):
        plan_of(file, Config.from_gguf(file.metadata, file.tensors), "tensor", 2)


def test_every_row_is_on_one_device(demo):
    """The rows of all devices are the rows of the file, each once; norms are whole everywhere."""
    file, config = demo
    whole = Weights(file, config)
    ranks = [ShardWeights(whole, config, Shard(rank, 2)) for rank in range(2)]
    assert shard_config(config, 2).heads == config.heads // 2
    for i, recurrent in enumerate(config.recurrent):
        names = [
            "ffn_gate",
            "ffn_up",
            "ffn_down",
            *(("attn_qkv", "attn_gate", "ssm_out") if recurrent else ("attn_q", "attn_k")),
        ]
        for name in names:
            rows = [part for rank in ranks for part in rank.block(i).matrix(f"{name}.weight").data]
            wanted = list(whole.block(i).matrix(f"{name}.weight").data)
            assert sorted(row.tobytes() for row in rows) == sorted(row.tobytes() for row in wanted), name
        norm = "attn_norm.weight"
        np.testing.assert_array_equal(ranks[1].block(i).vector(norm), whole.block(i).vector(norm))


@pytest.mark.parametrize(("n", "of"), [(16384, 2), (1000, 3), (16, 2), (248320, 4)])
def test_rows_of_the_head(n, of):
    parts = [Shard(rank, of).rows(n) for rank in range(of)]
    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(n))
    assert all(part.start % 16 == 0 for part in parts)


def test_columns_of_grouped_heads():
    """Value heads 0, 1 and 4, 5 of eight belong to the first device of two, whose key heads are 0 and 1."""
    assert Shard(0, 2).columns(8, groups=2) == Columns(0, 2, 4, 2)
    assert [(part.start, part.stop) for part in Shard(1, 2).columns(8, groups=2).ranges] == [(2, 4), (6, 8)]


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        (["cuda:0", "cuda:0"], "twice"),
        (["cuda:1", "cuda:0"], "CUDA_VISIBLE_DEVICES"),
        (["gpu"], "'gpu' is no GPU"),
        ([], "none"),
    ],
)
def test_names_of_devices(devices, words):
    assert device_numbers(["cuda:0", "1", 2]) == (0, 1, 2)
    with pytest.raises(RequestError, match=words):
        device_numbers(devices)


@pytest.mark.parametrize(
    ("name", "kind", "number"),
    [("cuda:12", "cuda", 12), ("cuda", "cuda", None), ("cpu", "cpu", None), ("cuda:", None, None), ("1", None, None)],
)
def test_names_of_one_device(name, kind, number):
    assert (device_kind(name), device_number(name)) == (kind, number)


def test_arguments_of_a_split(monkeypatch):
    monkeypatch.setattr(device, "trouble", lambda: "there is no NVIDIA GPU")
    two = ["cuda:0", "cuda:1"]
    for settings, error, words in (
        ({"split": "tensor"}, RequestError, "needs devices"),
        ({"split": "rows", "devices": two}, RequestError, "one of tensor, layer"),
        ({"devices": two, "device": "cpu"}, RequestError, "device is 'cpu'"),
        ({"devices": two, "device": "cuda:1"}, RequestError, "device is 'cuda:1'; give one of the two"),
        ({"devices": two}, Unsupported, "no NVIDIA GPU"),
    ):
        with pytest.raises(error, match=words):
            load_model("demo", LoadSettings(**settings))


def test_an_overview_needs_the_gpus(monkeypatch, demo):
    monkeypatch.setattr(device, "trouble", lambda: "there is no NVIDIA GPU")
    with pytest.raises(Unsupported, match="no NVIDIA GPU"):
        split_overview(demo[0], LoadSettings(devices=["cuda:0", "cuda:1"]))


def test_info_shows_the_plan(demo):
    plan = plan_of(*demo, "layer", 2, pages=None, free=1 << 30)
    about = {"split": plan.kind, "pages": plan.n_pages, "context": plan.context}
    about["devices"] = [part.as_dict() for part in plan.devices]
    text = as_text(overview(demo[0]) | {"plan": about})
    lines = [line.split() for line in text.splitlines() if line.startswith("  cuda:")]
    assert [line[:5] for line in lines] == [["cuda:0", "layers", "0", "to", "3:"], ["cuda:1", "layers", "4", "to", "7:"]]
    assert f"split          layer, {plan.n_pages:,} KV pages" in text


def test_states_of_another_split_are_not_found(demo):
    """States saved under one plan are not looked for under another."""
    plans = [plan_of(*demo, "layer", 2), plan_of(*demo, "layer", 3), plan_of(*demo, "tensor", 2)]
    assert len({plan.layout for plan in plans}) == 3
