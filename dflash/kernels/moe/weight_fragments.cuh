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
    float row[2];
    u32 minima[2][2], pair[2];  // of this lane's groups, and of two or four groups for all lanes of a row

    __device__ Weights(const u8* tile, int lane) : scales(tile, lane), tile(tile) {
        UNROLL for (int r = 0; r < 2; ++r) {
            const int at = lane / 4 + 8 * r;
            row[r] = 1.0f;
            if constexpr (Q::GROUP != 32) row[r] = row_scale<Q>(tile, at);
            if constexpr (Q::MINIMA > 0) {
                Q::minima(tile, at, lane % 4, minima[r]);
                const float scale = Q::minimum_scale(tile, at);
                UNROLL for (int i = 0; i < Q::MINIMA / 8; ++i) {
                    const u32 low = minima[r][i] & 0xffff, high = minima[r][i] >> 16;
                    minima[r][i] = to_half(__fmul_rn(to_float((u16)low), scale)) |
                                   to_half(__fmul_rn(to_float((u16)high), scale)) << 16;
                }
            }
        }
    }
    // Minimum of this lane's weights of row r in a block of 32, in both halves of a word. Blocks are asked for in order.
    __device__ u32 minimum_of(int r, int block, int lane) {
        constexpr bool TWO_GROUPS = Q::MINIMA == 16;  // of a block
        if (TWO_GROUPS || block % 2 == 0)
            pair[r] = __shfl_sync(~0u, minima[r][TWO_GROUPS ? block % 2 : 0], lane & 28 | block / 2);
        return __byte_perm(pair[r], 0, (TWO_GROUPS ? lane % 4 / 2 : block % 2) ? 0x3232 : 0x1010);
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
