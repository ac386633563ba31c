// What the norm of a head multiplies with, of which each of its SPLIT blocks has OWN values: 1 / rms.
#pragma once

struct Norm {
    static constexpr int GATHERS = THREADS / LANES, AHEAD = 4;  // threads side by side gather for a row of a head at a time
    u64* told;  // (rows, HEADS, SPLIT), of the first row and head
    int part, n;
    u32 tag[AHEAD];

    __device__ __forceinline__ Norm(u64* told, int part, int n_rows) : told(told), part(part), n(n_rows * SHARE) {}

    __device__ __forceinline__ u64* of(int i) const { return told + ((size_t)(i / SHARE) * HEADS + i % SHARE * GROUPS) * SPLIT; }

    // Read the tags that the first sums will have.
    __device__ __forceinline__ void look_ahead(int from = 0) {
#pragma unroll
        for (int k = 0; k < AHEAD; ++k) {
            const int i = from + k * GATHERS + threadIdx.x / LANES;
            tag[k] = SPLIT > 1 && i < n ? next_tag(of(i) + part) : 0;
        }
    }

    // Fill `scales`. All threads call it.
    __device__ __forceinline__ void exchange(const Shared& shared, float eps) {
        const int lane = threadIdx.x % LANES;
        const u32 lanes = 0xffu << threadIdx.x % 32 / LANES * LANES;
#pragma unroll 1
        for (int from = 0; from < n; from += AHEAD * GATHERS) {
            if (from) look_ahead(from);
            float sum[AHEAD];
#pragma unroll
            for (int k = 0; k < AHEAD; ++k) {
                const int i = from + k * GATHERS + threadIdx.x / LANES;
                sum[k] = 0.0f;
                if (i >= n) continue;
#pragma unroll
                for (int v = 0; v < OWN; v += LANES) {
                    const float read = shared.reads[i * OWN + v + lane];
                    sum[k] = __fmaf_rn(read, read, sum[k]);
                }
                sum[k] = sum_of_lanes(sum[k], lanes);
                if (SPLIT > 1 && lane == part) tell(of(i) + part, tag[k], sum[k]);
            }
#pragma unroll
            for (int k = 0; k < AHEAD; ++k) {
                const int i = from + k * GATHERS + threadIdx.x / LANES;
                if (i >= n) continue;
                if (SPLIT > 1) {
                    sum[k] = lane == part ? sum[k] : lane < SPLIT ? told_sum(of(i) + lane, tag[k]) : 0.0f;
                    sum[k] = sum_of_lanes(sum[k], lanes);
                }
                if (lane == 0) shared.scales[i] = rsqrtf(sum[k] * (1.0f / VALUES) + eps);
            }
        }
    }
};
