// Gate of attention, in place: out = half(out * softplus(gate)), with one gate for each head or for each element of a row.
//
// Grid (rows), block 256, no shared memory. Macros: ROW_DIM, elements of a row; GATES, gates of a row, a divisor of ROW_DIM.
// Bytes of a row: 4 * ROW_DIM, and 4 * GATES.
#include "../gpu/include/half.cuh"
#include "../gpu/include/pdl.cuh"

#if !defined(ROW_DIM) || !defined(GATES)
#error "ROW_DIM and GATES must be defined"
#endif
static_assert(ROW_DIM % GATES == 0, "every gate has as many elements");

// log(1 + exp(x)) without an overflow.
__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

extern "C" __global__ void __launch_bounds__(256) head_gate(const float* gate, unsigned short* out) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    const float* gates = gate + (size_t)blockIdx.x * GATES;
    u16* row = out + (size_t)blockIdx.x * ROW_DIM;
    for (int i = threadIdx.x; i < ROW_DIM; i += 256) {
        row[i] = half_saturated(__fmul_rn(to_float(row[i]), softplus(gates[i / (ROW_DIM / GATES)])));
    }
}
