"""Launch a kernel with one mistake on an emulated GPU; prints the error. Usage: ``faults.py NAME``."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import emulator  # noqa: F401
from dflash.errors import DFlashError
from dflash.kernels.gpu import device
from dflash.kernels.gpu.jit import kernel

FAULTS = {
    "none": "out[threadIdx.x] = in[threadIdx.x];",
    "beyond an array": "out[threadIdx.x] = in[threadIdx.x + 128];",
    "a barrier that not all reach": "if (threadIdx.x < 32) named_barrier_sync<1, 64>();",
    "too many arrivals": """__shared__ u64 barrier;
        if (threadIdx.x == 0) mbarrier_init(smem_address(&barrier), 8);
        __syncthreads();
        if (threadIdx.x < 3) mbarrier_arrive_no_complete(smem_address(&barrier), 3);""",
    "too much shared memory": "__shared__ float own[512]; own[threadIdx.x] = in[threadIdx.x];",
}
INCLUDE = Path(device.__file__).parent / "include"
SOURCE = """#include "{include}/cp_async.cuh"
#include "{include}/mbarrier.cuh"
extern "C" __global__ void faulty(const float* in, float* out) {{ {body} }}
"""


def main():
    with TemporaryDirectory() as folder:
        source = Path(folder, "faulty.cu")
        source.write_text(SOURCE.format(include=INCLUDE, body=FAULTS[sys.argv[1]]))
        given, out = device.zeros(128) + 5, device.zeros(128)
        try:
            kernel(source, "faulty").bind(1, 128, (given, out), 226 << 10)()
            device.synchronize()
            print(out.get().sum())
        except DFlashError as error:
            print(error)


main()
