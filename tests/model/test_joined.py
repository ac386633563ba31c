"""Kernels of a layer in one call give the bits of separate calls."""

import numpy as np
import pytest
from compare import assert_same_bits
from golden import FILES, load

from dflash.kernels.profile import profile
from dflash.model.batch import Span
from dflash.model.layers import Block

TOKENS = (5, 9, 3, 7)


def steps(model):
    """Logits of single tokens, one after the other, each committed before the next."""
    state, logits = model.state(), []
    for token in TOKENS:
        logits.append(model.forward([Span.chain(state, np.array([token], np.int32))]).logits.copy())
        state.commit([0])
    state.close()
    return np.concatenate(logits)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kv", ["f32", "f16"])
def test_joined_calls_change_no_bit(name, kv, monkeypatch):
    model, calls = load(name, kv=kv), []
    for block in model._blocks:
        for part in (block.mixer, block.ffn) if isinstance(block, Block) else ():
            if getattr(part, "joins", False):
                run = part.joined
                monkeypatch.setattr(part, "joined", lambda *args, run=run: (calls.append(1), run(*args)))
    together = steps(model)
    n_calls = len(calls)
    with profile() as ops:  # a profile needs the time of each kernel
        apart = steps(model)
    assert len(calls) == n_calls and "norm" in ops
    assert_same_bits(name, together, apart)
    if all(isinstance(block, Block) for block in model._blocks) and not model.config.experts and not model.config.layers:
        assert n_calls == 2 * len(TOKENS) * len(model._blocks)
