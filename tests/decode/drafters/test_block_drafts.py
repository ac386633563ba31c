"""Every kind of block draft, of random weights, beside a small model: the text is that of plain decoding."""

from dataclasses import replace
from pathlib import Path

import pytest
from drafts import KINDS, random_weights, write_gguf

import dflash
from dflash.decode.drafters.dflash import DFlash
from dflash.decode.drafting.drafter import Strategy
from dflash.decode.drafting.shapes import Chain, Tree

FILE = Path(__file__).parents[2] / "data" / "golden" / "qwen35-r2-untied" / "qwen35-r2-untied-F32.gguf"
SPECIAL = 480
"""Where the tile of 16 tokens begins that has the first special one."""

PROMPTS = [list(range(3, 60)), list(range(200, 212))]


@pytest.fixture(scope="module")
def lm():
    with dflash.load(FILE, device="cpu", threads=1, context=128, sequences=3) as lm:
        yield lm


@pytest.mark.parametrize("vocab", [None, 90], ids=["all tokens", "90 tokens"])
@pytest.mark.parametrize("temperature", [0, 0.8])
@pytest.mark.parametrize("shape", [Chain(), Chain(2), Tree(14)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_the_text_is_that_of_plain_decoding(lm, tmp_path, kind, shape, temperature, vocab):
    sizes = lm.model.config
    config = replace(KINDS[kind], width=sizes.width, n_vocab=sizes.n_vocab, mask=sizes.n_vocab - 1, target_layer_ids=(0, 2))
    path = write_gguf(tmp_path / "draft.gguf", config, random_weights(config))
    settings = {"max_tokens": 24, "temperature": temperature, "seed": 3}
    plain = lm.generate(PROMPTS, **settings)
    drafter = DFlash(path, min_confidence=0.1, draft_vocab=vocab)
    drafted = lm.generate(PROMPTS, strategy=Strategy(drafter, shape), **settings)
    assert [one.tokens for one in drafted] == [one.tokens for one in plain]
    draft = lm.model.attachments[drafter]
    assert draft.config.kind == kind
    if vocab:
        tokens = {int(token) for one in drafted for step in one.steps for token in step.draft.tokens}
        assert not tokens & set(range(vocab, SPECIAL))
    assert draft.free_slots == lm.model.pools.slots
