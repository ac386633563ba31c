"""Fusion rules that are switched off on a GPU: results of passes whose launches differ."""

import numpy as np
import pytest
from compare import assert_close
from golden import load, step

pytest.importorskip("cupy")

CARRY = "carried-norm", "gated-norm"
"""Rules that change last bits."""


def steps_of(name):
    """Logits of single rows of a model that is loaded now, and the kernels of its pass of one row."""
    from dflash.kernels.gpu.launch import recorded

    model = load.__wrapped__(name, kv="f16", device="cuda")
    state = model.state()
    rows = [step(model, state, [token]).copy() for token in (1, 2, 3)]
    state.close()
    made = model.made(1)
    steps = [step for part in (made.start, *made.blocks, made.end) for op in part for step in op.steps]
    return np.concatenate(rows), recorded(steps, 1)


@pytest.mark.parametrize("name", ["qwen3next-tiny-Q8_0", "qwen3-dense-Q4_0"])
def test_results_without_each_rule(name):
    from dflash.model.run.rules import RULES, without

    (want, kernels), differ = steps_of(name), set()
    for rule in RULES.keys() - {"joined"}:
        with without([rule]):
            got, others = steps_of(name)
        if rule in CARRY:
            assert_close(rule, got, want, 2e-3)
        else:
            np.testing.assert_array_equal(got, want, rule)
        differ |= {rule} if others != kernels else set()
    assert "carried-norm" in differ
