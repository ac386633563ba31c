"""GELU gate against its definition."""

import numpy as np
import pytest
from compare import assert_close, assert_same_bits

from dflash.errors import KernelError
from dflash.kernels.gelu import gelu_gate, reference

CASES = list(reference.cases())


@pytest.mark.parametrize(("rows", "width"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_the_gelu_gate_equals_the_definition(rows, width):
    rng = np.random.default_rng(0)
    gate = 4 * rng.standard_normal((rows, width), dtype=np.float32)
    gate[0, :6] = 0, -0.0, 1e-20, 30, -30, -1e9
    values = rng.standard_normal((rows, 3 * width), dtype=np.float32)[:, width : 2 * width]
    want, out = np.empty((rows, width)), np.full((rows + 1, width), np.nan, np.float32)
    reference.gelu_gate(gate, values, out=want)
    gelu_gate(gate, values, out=out[:-1])
    assert_close("gelu", out[:-1], want, 2e-7)
    assert np.isnan(out[-1]).all()
    assert np.abs(out[0, 4:6]).max() < 1e-28
    gelu_gate(gate, values, out=gate)
    assert_same_bits("in place", gate, out[:-1])


SIZES = {"gate": (24, 24, 24), "values": (16, 32, 16), "out": (16, 16, 32)}


@pytest.mark.parametrize("name", SIZES)
def test_arrays_of_wrong_shape_are_refused(name):
    gate, values, out = (np.zeros((2, width), np.float32) for width in SIZES[name])
    with pytest.raises(KernelError, match=f"gelu_gate: {name}"):
        gelu_gate(gate, values, out=out)
