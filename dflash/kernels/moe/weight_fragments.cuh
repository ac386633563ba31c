// Weights of packed tiles, dequantised to float16 A fragments of wgmma: rounded once or twice.
#pragma once
#include "../gpu/include/half.cuh"
#include "../formats/mma_tile.cuh"

constexpr float FACTOR_SCALE =
    32768.0f;  // codes are multiplied by this and scales divided by it: float16 could not hold the scales

__device__ __forceinline__ u32 broadcast_half(float f) { return to_half(f) * 0x10001u; }

// A lane's part of a tile, dequantised to float16.
template <class Q>
struct Weights {
    typename Q::Scales scales;
    const u8* tile;
    float row[2], minimum[2];
    u32 minima[2][2];

    __device__ Weights(const u8* tile, int lane) : scales(tile, lane), tile(tile) {
        UNROLL for (int r = 0; r < 2; ++r) {
            const int at = lane / 4 + 8 * r;
            row[r] = 1.0f;
            if constexpr (Q::GROUP != 32) row[r] = row_scale<Q>(tile, at);
            if constexpr (Q::MINIMA > 0) {
                Q::minima(tile, at, lane % 4, minima[r]);
                minimum[r] = Q::minimum_scale(tile, at);
            }
        }
    }
    // Minimum of this lane's weights of row r in a block of 32, in both halves of a word.
    __device__ u32 minimum_of(int r, int block, int lane) const {
        const int group = Q::MINIMA == 16 ? 2 * block + lane % 4 / 2 : block;
        const u32 pair = __shfl_sync(~0u, minima[r][Q::MINIMA == 16 ? block % 2 : 0], lane & 28 | group / (Q::MINIMA / 4));
        return broadcast_half(__fmul_rn(to_float((u16)(pair >> 16 * (group % 2))), minimum[r]));
    }
    // A fragments of 32 weights.
    __device__ void load(int block, int lane, u32 (&a)[8]) {
        warp_fragment<Q>(tile, scales, block, lane, a);
        UNROLL for (int r = 0; r < 2; ++r) {
            u32 low = 0;
            if constexpr (Q::MINIMA > 0) low = minimum_of(r, block, lane);
            UNROLL for (int h = 0; h < 2; ++h) {
                float factor = row[r];
                if constexpr (Q::GROUP == 16) factor = __fmul_rn(factor, scales.of(r, 2 * block + h));
                if constexpr (Q::GROUP == 32) factor = scales.of(r, block);
                const u32 f = broadcast_half(__fmul_rn(factor, 1.0f / FACTOR_SCALE));
                UNROLL for (int i = 4 * h + r; i < 4 * h + 4; i += 2) a[i] = fma_half2(mul_half2(a[i], 0x78007800u), f, low);
            }
        }
    }
};
