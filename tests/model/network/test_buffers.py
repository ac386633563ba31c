"""Buffers that share memory are never in use at the same time."""

from itertools import combinations

import numpy as np
import pytest
from compare import assert_same_bits
from golden import FILES, load, path_of, prefill

from dflash.model.config import Config
from dflash.model.gguf.file import GGUFFile
from dflash.model.network.buffers import lifetimes, place
from dflash.model.network.target import target
from dflash.model.weights import Weights


@pytest.mark.parametrize("name", FILES)
def test_no_two_live_buffers_overlap(name):
    with GGUFFile.open(path_of(name)) as file:
        config = Config.from_gguf(file.metadata, file.tensors)
        ops = target(config, Weights(file, config)).program.ops
    lives, (starts, size) = lifetimes(ops), place(ops, lambda buffer: buffer.width)
    assert starts.keys() == lives.keys()
    assert max(starts[each] + each.width for each in lives) == size < sum(each.width for each in lives) / 2
    for one, other in combinations(lives, 2):
        if lives[one][0] <= lives[other][1] and lives[other][0] <= lives[one][1]:
            assert starts[one] + one.width <= starts[other] or starts[other] + other.width <= starts[one]


@pytest.mark.parametrize("name", FILES)
def test_buffers_hold_nothing_between_uses(name, monkeypatch):
    """Rows of a buffer may be anything before its first and after its last op."""
    model = load(name)

    def logits():
        state = model.state()
        rows, _ = prefill(model, state, np.arange(1, 41) % model.n_vocab)
        state.close()
        return rows

    wanted, run, host = logits(), model._run, model._run._host
    lives, steps = lifetimes([op for op, _ in run._steps]), []
    for i, (op, step) in enumerate(run._steps):
        steps.append(
            (op, poisoned(step, [host[each] for each, (first, _) in lives.items() if first == i and not each.kept]))
        )
    monkeypatch.setattr(run, "_steps", steps)
    assert_same_bits(name, logits(), wanted)


def poisoned(step, arrays):
    """A step before which the buffers that it is the first to use are filled with NaN."""

    def run(batch, n):
        for array in arrays:
            array.fill(np.nan)
        step(batch, n)

    return run
