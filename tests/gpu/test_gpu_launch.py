"""Launches on a GPU: in order, in graphs, with dependents that start early, and faults that name their kernel."""

from pathlib import Path

import numpy as np
import pytest
from python_run import run_python

import dflash.kernels
from dflash.errors import KernelError
from dflash.kernels.gpu import jit
from dflash.kernels.gpu.capabilities import capabilities

cupy = pytest.importorskip("cupy")

KERNELS = Path(dflash.kernels.__file__).parent
SOURCE = f"""
#include "{KERNELS}/gpu/include/pdl.cuh"
struct alignas(64) TensorMap {{ unsigned long long words[16]; }};

extern "C" __global__ void step(const float* x, float* out, int n, float add) {{
    launch_dependent_grids();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    wait_on_dependent_grids();
    if (i < n) out[i] = x[i] * 0.5f + add + SHIFT;
}}

extern "C" __global__ void first_word(const __grid_constant__ TensorMap map, unsigned long long* out) {{
    out[0] = map.words[0];
}}

#ifndef FLOATS
#define FLOATS 1
#endif
extern "C" __global__ void shared_sum(float* out) {{
    extern __shared__ float room[];
    for (int i = threadIdx.x; i < FLOATS; i += blockDim.x) room[i] = i;
    __syncthreads();
    if (threadIdx.x == 0) out[0] = room[FLOATS - 1];
}}

extern "C" __global__ void fault(float* out) {{ out[1ull << 40] = 1.0f; }}
"""
N = 100_000


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "step.cu"
    path.write_text(SOURCE)
    return path


def expected(x, steps):
    for add in range(steps):
        x = x * np.float32(0.5) + np.float32(add) + np.float32(1)
    return x


def there_and_back(path, dependent):
    """Return values, their device array, launches that step from it to another array and back, and a stream for them."""
    step = jit.kernel(path, "step", dependent=dependent, SHIFT="1.0f")
    start = np.random.default_rng(1).standard_normal(N).astype(np.float32)
    a, b = cupy.asarray(start), cupy.empty(N, np.float32)
    there, back = (step.bind(-(-N // 256), 256, pair) for pair in ((a, b, N, 0.0), (b, a, N, 1.0)))
    jit.warm()
    stream = cupy.cuda.Stream(non_blocking=True)
    return start, a, there, back, stream


@pytest.mark.parametrize("dependent", [False, True])
def test_a_chain_runs_in_order(path, dependent):
    start, a, there, back, stream = there_and_back(path, dependent)
    for _ in range(20):
        a.set(start)
        cupy.cuda.Device().synchronize()
        for i in range(50):
            there(stream, add=float(2 * i))
            back(stream, add=float(2 * i + 1))
        stream.synchronize()
        np.testing.assert_allclose(a.get(), expected(start, 100), rtol=1e-6)


@pytest.mark.parametrize("dependent", [False, True])
def test_a_graph_keeps_the_arguments_of_its_capture(path, dependent):
    start, a, there, back, stream = there_and_back(path, dependent)
    with stream:
        stream.begin_capture()
        for i in range(50):
            there(add=float(2 * i))
            back(add=float(2 * i + 1))
        graph = stream.end_capture()
    there(stream, add=1000.0)
    for _ in range(20):
        stream.synchronize()
        a.set(start)
        cupy.cuda.Device().synchronize()
        graph.launch(stream)
        stream.synchronize()
        np.testing.assert_allclose(a.get(), expected(start, 100), rtol=1e-6)


def test_much_shared_memory_and_tensor_maps(path):
    from dflash.kernels.gpu.driver import tensor_map

    out, floats = cupy.zeros(1, np.float32), capabilities().block_shared // 4
    jit.kernel(path, "shared_sum", SHIFT=1, FLOATS=floats)(1, 256, (out,), shared=4 * floats)
    assert out.get()[0] == floats - 1
    word = cupy.zeros(1, np.uint64)
    if not capabilities().has_wgmma:
        pytest.skip("tensor maps begin with Hopper")
    made = tensor_map(cupy.zeros((256, 128), np.float16), (64, 64))
    jit.kernel(path, "first_word", SHIFT=1)(1, 1, (made, word))
    assert word.get()[0] == made.words[0]


def test_a_source_that_does_not_compile_is_named_by_warm(tmp_path):
    path = tmp_path / "wrong.cu"
    path.write_text('extern "C" __global__ void wrong(float* x) {\n    x[0] = nothing;\n}\n')
    launch = jit.kernel(path, "wrong")
    with pytest.raises(KernelError, match=r"wrong\.cu\(2\)"):
        jit.warm()
    with pytest.raises(KernelError, match=r"wrong\.cu\(2\)"):
        launch(1, 1, (None,))
    with pytest.raises(KernelError, match="never waits"):
        jit.kernel(path, "wrong", dependent=True)


def test_another_thread_may_launch(path):
    from threading import Thread

    out, floats = cupy.zeros(1, np.float32), capabilities().block_shared // 4
    bound = jit.kernel(path, "shared_sum", SHIFT=1, FLOATS=floats).bind(1, 256, (out,), shared=4 * floats)
    jit.warm()
    cupy.cuda.Device().synchronize()
    thread = Thread(target=bound, args=(cupy.cuda.Stream.null,))
    thread.start()
    thread.join()
    cupy.cuda.Device().synchronize()
    assert out.get()[0] == floats - 1


def test_a_fault_names_its_kernel(path):
    code = (
        "import cupy, sys\nfrom pathlib import Path\nfrom dflash.kernels.gpu import jit\n"
        "jit.kernel(Path(sys.argv[1]), 'fault', SHIFT=1)(1, 1, (cupy.zeros(1, 'f'),))\n"
    )
    run = run_python("-c", code, path, env={"DFLASH_DEBUG_SYNC": "1"}, check=False)
    assert "KernelError: fault in step.cu: " in run.stderr
