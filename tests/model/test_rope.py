"""Rotary frequencies against those of Transformers."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dflash.errors import FormatError
from dflash.model.config_sizes import RopeScaling
from dflash.model.gguf.keys import Keys
from dflash.model.rope import inverse_frequencies

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "rope_scaling.json").read_text())

LLAMA3 = [1.0, 0.19392276, 0.0032114461, 0.0021665706, 0.0013718937, 0.00017850779, 9.5562122e-05, 3.0689259e-07]


def scaling_of(**keys):
    found = {f"x.rope.scaling.{name}": value for name, value in keys.items()}
    return RopeScaling.from_keys(Keys(found | {"x.context_length": 4096}, "x"))


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: f"{case['kind']}-{case['factor']:g}-{case['n_rot']}")
def test_scaled_frequencies_are_as_recorded(case):
    scaling = scaling_of(type=case["kind"], factor=case["factor"], original_context_length=case["original_context"])
    config = SimpleNamespace(n_rot=case["n_rot"], rope_base=case["rope_base"], rope_scaling=scaling)
    inv_freq, gain = inverse_frequencies(config)
    np.testing.assert_allclose(inv_freq, np.array(case["inv_freq"]), rtol=1e-6)
    assert gain == pytest.approx(case["gain"], rel=1e-6)


def test_frequencies_of_llama_3():
    """Those of Llama 3.1 as Transformers 5.19 computes them: fast pairs as they are, slow ones divided by 8."""
    scaling = RopeScaling("llama3", 8.0, 8192, 1.0, 1.0, 4.0, 1.0)
    inv_freq, gain = inverse_frequencies(SimpleNamespace(n_rot=128, rope_base=5e5, rope_scaling=scaling))
    np.testing.assert_allclose(inv_freq[[0, 8, 28, 29, 30, 34, 35, 63]], LLAMA3, rtol=2e-6)
    assert gain == 1


def test_plain_frequencies_equal_the_definition():
    config = SimpleNamespace(n_rot=64, rope_base=1e7, rope_scaling=None)
    inv_freq, gain = inverse_frequencies(config)
    np.testing.assert_allclose(inv_freq, 1e7 ** (-np.arange(0, 64, 2) / 64), rtol=1e-6)
    assert gain == 1


def test_yarn_with_a_base_that_was_replaced():
    """A draft may use the rotation base of its target, which was checked without the draft's scaling."""
    config = SimpleNamespace(n_rot=64, rope_base=1.0, rope_scaling=RopeScaling("yarn", 4.0, 1024, 1.0, 1.0, 32.0, 1.0))
    with pytest.raises(FormatError, match="rotation base is 1, must be at least 2 with YaRN"):
        inverse_frequencies(config)
