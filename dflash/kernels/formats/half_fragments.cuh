// A fragments of the float16 values of weights, with the columns in order: those that mma reads from the rows of unpack.cu.
//
// A tile has other columns in a lane's words (quants.cuh). So a warp stores the values of 16 rows and 32 columns in shared
// memory, EXCHANGE_BYTES for it alone, and reads fragments of them.
#pragma once
#include "values.cuh"
#include "../gpu/include/mma.cuh"

constexpr int EXCHANGE_BYTES = 16 * 64;

// A row of a tile as one of the four lanes that unpack it needs it: the factors that all columns share.
template <class Q>
struct RowOfTile {
    static constexpr int OWN = Q::MINIMA / 4;  // groups whose minimum the lane holds

    const u8* tile;
    int row;
    float factor, shifts[OWN > 0 ? OWN : 1];

    __device__ __forceinline__ RowOfTile(const u8* tile, int row, int t) : tile(tile), row(row) {
        if constexpr (Q::GROUP == Q::TILE_K) factor = Q::scale(tile, row, 0);
        if constexpr (OWN > 0) {
            u32 minima[Q::MINIMA / 8];
            Q::minima(tile, row, t, minima);
            const float unit = Q::minimum_scale(tile, row);
            UNROLL for (int i = 0; i < OWN; ++i) shifts[i] = __fmul_rn(half_of(minima[i / 2], i % 2), unit);
        }
    }
    __device__ __forceinline__ float scale(int group) const {
        if constexpr (Q::GROUP == Q::TILE_K) return factor;
        return Q::scale(tile, row, group);
    }
    // What is added to the lane's weights of 32-block `block`; by a whole warp.
    __device__ __forceinline__ float shift(int block, int lane) const {
        const int owner = (lane & 28) | block / 2;
        if constexpr (Q::MINIMA == 8) return __shfl_sync(~0u, shifts[block % 2], owner);
        const int first = block % 2 * 2;
        const float low = __shfl_sync(~0u, shifts[first], owner), high = __shfl_sync(~0u, shifts[first + 1], owner);
        return lane % 4 / 2 ? high : low;
    }
    // The lane's eight weights of a 32-block, as `tile_values`, in float16. `words`: of the row, from the block's A fragment.
    __device__ __forceinline__ void halves(const u32 (&words)[4], int block, int lane, u32 (&pairs)[4]) const {
        float added = 0.0f;
        if constexpr (OWN > 0) added = shift(block, lane);
        UNROLL for (int p = 0; p < 4; ++p) {
            const float by = scale(Q::GROUP == 16 ? 2 * block + p / 2 : Q::GROUP == 32 ? block : 0);
            float low = __fmul_rn(half_of(words[p], 0), by), high = __fmul_rn(half_of(words[p], 1), by);
            if constexpr (OWN > 0) low = __fadd_rn(low, added), high = __fadd_rn(high, added);
            pairs[p] = pack_half2(low, high);
        }
    }
};

// A tile of F32 holds more bits than its fragments.
template <>
__device__ __forceinline__ void RowOfTile<F32>::halves(const u32 (&)[4], int block, int lane, u32 (&pairs)[4]) const {
    float v[8];
    tile_values<F32>(tile, row, block, lane % 4, v);
    UNROLL for (int p = 0; p < 4; ++p) pairs[p] = pack_half2(v[2 * p], v[2 * p + 1]);
}

// Place of eight columns, number `eight` of four, of a row: without bank conflicts for stores and for ldmatrix.
__device__ __forceinline__ u32 exchange_at(u32 memory, int row, int eight) {
    return memory + row * 64 + (eight ^ row / 2 % 4) * 16;
}

// Store a lane's weights of a row.
template <class Q>
__device__ __forceinline__ void store_row(u32 memory, int row, int t, const u32 (&pairs)[4]) {
    if constexpr (Q::RUN == 8) {
        st_shared_16(exchange_at(memory, row, t), make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]));
    } else {
        UNROLL for (int i = 0; i < 2; ++i) {
            const u32 to = exchange_at(memory, row, 2 * i + t / 2) + t % 2 * 8;
            asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(__uint_as_float(pairs[2 * i])),
                         "f"(__uint_as_float(pairs[2 * i + 1]))
                         : "memory");
        }
    }
}

// The A fragments of the first and of the second 16 columns.
__device__ __forceinline__ void load_fragments(u32 memory, int lane, u32 (&first)[4], u32 (&second)[4]) {
    const int row = lane % 16, eight = lane / 16;
    ldmatrix_x4(first, exchange_at(memory, row, eight));
    ldmatrix_x4(second, exchange_at(memory, row, eight + 2));
}
