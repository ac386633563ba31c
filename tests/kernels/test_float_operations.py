"""Results do not depend on which run of the compiler made a kernel: every run makes the same floating-point operations."""

import re
from collections import Counter

import nvrtc
import pytest
from nvrtc import KERNELS, compile_cubin, contractible, expect

from dflash.kernels.gpu.jit import macros, source

pytestmark = nvrtc.needed

RUNS = 4
SHAPE = {"EXPERTS": 256, "N_USED": 8, "N_SHARED": 1, "MODEL_DIM": 2048, "FFN_DIM": 512, "SHARED_FFN_DIM": 512}
EXPERTS = SHAPE | dict.fromkeys(("GATE", "UP", "SHARED_GATE", "SHARED_UP"), "Q3_K")
DELTA = {"KEY_HEADS": 2, "VALUE_HEADS": 6, "KEY_DIM": 32, "VALUE_DIM": 32, "HEAD_RUN": 1, "STORED_ROWS": 1, "TAPS": 4}
CASES = {
    "moe/gate_up.cu": EXPERTS | {"STAGES": 1, "BLOCKS_PER_SM": 3},
    "moe/gate_up_small.cu": EXPERTS | {"BLOCKS_PER_SM": 3},
    "delta/chunk_scan.cu": DELTA | {"BLOCK_V": 32, "STAGES": 2},
    "norm/add_norm.cu": {"ROW_DIM": 2816, "THREADS": 320, "CLEAR": 1},
    "sample/candidates.cu": {"VOCAB": 1001, "THREADS": 64, "MAX_TOP": 64},
}
"""Kernels whose code NVRTC 13.5 makes differently now and then, and some with sums of products."""

_OPERATION = re.compile(
    r"(?:@!?%\w+ )?((?:fma|mad|add|sub|mul|div|rcp|sqrt|rsqrt|ex2|lg2|sin|cos|tanh|cvt|min|max|mma|wgmma)[\w.]*"
    r"\.(?:b?f16x?2?|tf32|f32|f64)\b[\w.]*)\s"
)
SUMS = 'extern "C" __global__ void sums(float* x, double* y) { *x = x[1] * x[2] + x[3]; *y = y[1] * y[2] - y[3]; }'


def operations(ptx):
    """Return the number of each floating-point operation, with its rounding and types, on each line of a source."""
    files, line, found = dict(re.findall(r'^\s*\.file\s+(\d+)\s+"([^"]+)"', ptx, re.MULTILINE)), "", Counter()
    for row in ptx.splitlines():
        place = re.match(r"\s*\.loc\s+(\d+)\s+(\d+)", row)
        operation = _OPERATION.match(row.strip())
        if place:
            line = f"{files[place[1]]}:{place[2]}"
        elif operation:
            found[line, operation[1]] += 1
    return found


def ptx_of(text, *options):
    return compile_cubin(nvrtc.LIBRARY, text, "90a", ("-lineinfo", *options))[2]


@pytest.mark.parametrize("path", CASES)
def test_every_compilation_has_the_same_operations(path):
    text, options = source(KERNELS / path), macros(CASES[path])
    first, *others = (operations(ptx_of(text, *options)) for _ in range(RUNS))
    assert first.total() > 10
    for other in others:
        expect(other == first, f"{path}: {(first - other) + (other - first)} differ")


def test_products_and_sums_are_never_joined():
    """Neither by NVRTC nor, for want of rounding modes, by ptxas."""
    ptx = ptx_of(SUMS)
    found = {operation for _, operation in operations(ptx)}
    assert found == {"mul.rn.ftz.f32", "add.rn.ftz.f32", "mul.rn.f64", "sub.rn.f64"}
    assert not contractible(ptx)
    joined = operations(ptx_of(SUMS, "--fmad=true"))
    assert any("fma" in operation for _, operation in joined), "the count does not see what it is for"
    written = (
        "add.rn.f16x2 %r1, %r2, %r3;",
        "@%p1 mul.ftz.bf16 %r1, %r2, %r3;",
        "add.s32 %r1, %r1, 1;",
        "sub.f32 %f1, %f2, %f3;",
    )
    assert contractible("\n\t".join(written)) == ["mul.ftz.bf16", "sub.f32"]
