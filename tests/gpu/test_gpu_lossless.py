"""No guess changes a text on a GPU: chains not at all, trees not but near a tie. DFLASH_LONG=1 writes long ones."""

import pytest
from lossless import UNITS, assert_unit

NEAR = 0.004
"""Of a logit: a tree sums in another order than single steps, which moves them by less than half of this (RMS)."""


@pytest.mark.parametrize(("prompt", "name"), UNITS)
def test_the_demo(prompt, name):
    for strategy, place, margin in assert_unit("cuda", prompt, name, tie=NEAR):
        print(f"prompt {prompt}, {name}: {strategy!r} parts at token {place}, where errors of {margin:.1e} decide")
