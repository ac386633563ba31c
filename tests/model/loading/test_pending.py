"""The number of pending rows as a setting of loading: memory, drafts, refusals."""

from contextlib import closing

import pytest

import dflash
from dflash.cli.info import as_text
from dflash.decode.drafting.shapes import Chain, Tree
from dflash.errors import RequestError
from dflash.model.config import Config
from dflash.model.loading.settings import LoadSettings
from dflash.model.loading.target import load_model

TEXT = "def fibonacci(n):\n    if n"
SMALL = {"device": "cpu", "threads": 1, "context": 512, "sequences": 2}


def test_out_of_range():
    for pending in (0, 65, -3):
        with pytest.raises(RequestError, match=f"pending is {pending}, must be 1 to 64"):
            load_model("demo", LoadSettings(**SMALL, pending=pending))


@pytest.fixture(scope="module")
def few():
    with dflash.load("demo", **SMALL, pending=6) as lm:
        yield lm


@pytest.mark.parametrize(
    "strategy", ["lookup:20", "dflash:15", "ddtree:22", "draft-model:9", "adaptive", "first(lookup,dflash)"]
)
def test_drafts_are_cut_to_the_rows(lm, few, strategy):
    chosen = dflash.DraftModel("demo") if strategy.startswith("draft-model") else strategy
    want = lm.generate(TEXT, max_tokens=40).tokens
    got = few.generate([TEXT, "import os", TEXT], max_tokens=40, strategy=chosen)
    assert got[0].tokens == got[2].tokens == want
    most = max(step.drafted for step in got[0].steps)
    assert most <= 5
    assert most > 2 or strategy == "adaptive", "which may find that drafts do not pay, beside other work"


def test_a_tree_and_forced_tokens_are_cut(lm, few):
    for shape in (Tree(22), Chain(30)):
        strategy = dflash.Strategy(dflash.DFlash(), shape)
        assert few.generate(TEXT, max_tokens=30, strategy=strategy).tokens == lm.generate(TEXT, max_tokens=30).tokens
    schema = {"type": "object", "properties": {"a_rather_long_name": {"type": "string"}}, "required": ["a_rather_long_name"]}
    settings = {"max_tokens": 30, "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}
    assert few.generate(TEXT, **settings).tokens == lm.generate(TEXT, **settings).tokens


def test_a_small_model_stores_as_few(few):
    drafter = dflash.DraftModel("demo")
    few.prepare(drafter)
    small = few.model.attachments[drafter].model
    assert small.config.pending == small.pools.delta[0].n_pending == 6


def test_info_counts_them(lm, few):
    memory, all_memory = few.info()["memory"], lm.info()["memory"]
    assert (memory["pending_rows"], all_memory["pending_rows"]) == (6, 64)
    assert 64 * memory["pending_per_sequence"] == 6 * all_memory["pending_per_sequence"]
    pools = few.model.pools
    held = sum(array.nbytes for c, d in zip(pools.conv, pools.delta, strict=True) for array in (c.inputs, d.k, d.u, d.decay))
    assert memory["pending_per_sequence"] == held // pools.slots
    about = few.info()
    assert "for 6 pending tokens" in as_text(about)


def test_one_row_is_for_plain_decoding(lm):
    with closing(dflash.load("demo", **SMALL, pending=1)) as plain:
        want = lm.generate(TEXT, max_tokens=30, temperature=0.8, seed=1)
        assert plain.generate(TEXT, max_tokens=30, temperature=0.8, seed=1).tokens == want.tokens
        for strategy in ("lookup", "dflash", "mtp", "adaptive", dflash.DraftModel("no such file")):
            for use in (plain.prepare, lambda strategy: plain.generate(TEXT, strategy=strategy)):
                with pytest.raises(RequestError, match=r"drafts, but the model was loaded with pending=1.*pending=16"):
                    use(strategy)


def test_a_configuration_has_all_pending_rows_by_default(lm):
    assert Config.from_gguf(lm.file.metadata, lm.file.tensors).pending == 64
    assert lm.model.config.pending == 64
