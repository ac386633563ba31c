"""Loading of CUDA sources: includes, signatures and arguments."""

import ctypes

import numpy as np
import pytest

from dflash.errors import KernelError
from dflash.kernels.gpu.jit import macros, source
from dflash.kernels.gpu.signature import Parameter, parameters

KERNEL = """
// extern "C" __global__ void commented(int x)
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(128)
scale(const float* __restrict__ x, float *out,  /* rows */ int n, unsigned long long at, float by) {}
"""


def test_reads_the_signature():
    found = [(p.name, p.is_array, p.dtype) for p in parameters(KERNEL, "scale")]
    assert found == [
        ("x", True, np.float32),
        ("out", True, np.float32),
        ("n", False, np.int32),
        ("at", False, np.uint64),
        ("by", False, np.float32),
    ]


def test_refuses_unknown_entries_and_types():
    with pytest.raises(KernelError, match="commented"):
        parameters(KERNEL, "commented")
    with pytest.raises(KernelError, match="half"):
        parameters('extern "C" __global__ void f(half x)', "f")


def test_casts_numbers_and_refuses_what_is_no_device_array():
    cell = Parameter("float by").cell(2, "f")
    assert isinstance(cell, ctypes.c_float) and cell.value == 2
    assert Parameter("unsigned long long at").cell(1 << 40, "f").value == 1 << 40
    assert Parameter("const float* x").cell(None, "f").value == 0
    with pytest.raises(KernelError, match="x is a device array of float32, got ndarray"):
        Parameter("const float* x").cell(np.zeros(3, np.float32), "f")
    with pytest.raises(KernelError, match="n is a number"):
        Parameter("int n").cell(np.zeros(3), "f")
    with pytest.raises(KernelError, match="map is a tensor map, got int"):
        Parameter("const __grid_constant__ TensorMap map").cell(3, "f")


def test_pastes_each_include_once_and_keeps_line_numbers(tmp_path):
    (tmp_path / "a.cuh").write_text("a\n")
    (tmp_path / "b.cuh").write_text('#include "a.cuh"\nb\n')
    (tmp_path / "k.cu").write_text('#include "b.cuh"\n#include "a.cuh"\nk\n')
    lines = source(tmp_path / "k.cu").splitlines()
    assert lines.count("a") == 1
    assert lines[lines.index("k") - 1] == '#line 3 "k.cu"'
    assert lines[lines.index("b") - 1] == '#line 2 "b.cuh"'


def test_an_op_outside_the_package_includes_shared_headers_by_the_same_name(tmp_path):
    path = tmp_path / "k.cu"
    path.write_text('#include "../gpu/include/pdl.cuh"\nk\n')
    assert "void wait_on_dependent_grids" in source(path)


def test_macros_are_in_order():
    assert macros({"TOKENS": 8, "QUANT": "Q4_K"}) == ("-DQUANT=Q4_K", "-DTOKENS=8")
