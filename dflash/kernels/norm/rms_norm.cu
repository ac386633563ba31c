// RMS norm: out = x / sqrt(mean(x ** 2) + eps) * weight. A block keeps its row in registers, so the row is read once.
//
// Grid (rows), block THREADS, shared memory: one float a warp (static). Macros: ROW_DIM, elements of a row; THREADS, a
// multiple of 32. Outputs: `half`, float16 clamped to [-65504, 65504]; `full`, float32. A null output is not written.
// Bytes of a row: 4 * ROW_DIM read; 2 * ROW_DIM written to `half`, 4 * ROW_DIM to `full`. The order of the additions depends
// on ROW_DIM and THREADS only.
#include "../gpu/include/pdl.cuh"
#include "row.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
rms_norm(const float* x, const float* weight, unsigned short* half, float* full, float eps) {
    launch_dependent_grids();
    const RowGains gains(weight);
    wait_on_dependent_grids();
    const size_t start = (size_t)blockIdx.x * N_VECTORS;
    RowVector row[PER_THREAD];
    const float factor = load_row(row, (const RowVector*)x + start, eps);
    store_row(row, factor, gains, half ? (RowHalves*)half + start : nullptr, full ? (RowVector*)full + start : nullptr);
}
