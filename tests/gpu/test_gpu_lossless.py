"""No draft token changes a text on a GPU: chains not at all, trees not but near a tie. DFLASH_LONG=1 writes long ones."""

import pytest
from lossless import PROMPTS, STRATEGIES, UNITS, N, assert_unit, compare, demo

NEAR = 0.004
"""Of a logit: a tree sums in another order than single steps, which moves them by less than half of this (RMS)."""


@pytest.mark.parametrize(("prompt", "name"), UNITS)
def test_the_demo(prompt, name):
    for strategy, place, margin in assert_unit("cuda", prompt, name, tie=NEAR):
        print(f"prompt {prompt}, {name}: {strategy!r} parts at token {place}, where errors of {margin:.1e} decide")


@pytest.mark.parametrize("kv", ["q8_0", "q4_0", "q8_0/q4_0"])
def test_a_quantized_cache(kv):
    """A tree's rows differ in last bits from single steps, and of these other numbers may be stored: near ties are wider."""
    _, parted = compare(demo("cuda", kv).model, PROMPTS[3], STRATEGIES, N, tie=16 * NEAR)
    for strategy, place, margin in parted:
        print(f"{kv}: {strategy!r} parts at token {place}, where errors of {margin:.1e} decide")
