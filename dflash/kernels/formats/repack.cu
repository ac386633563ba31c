// Repack rows of a file's blocks to tiles; quants.cuh has both layouts.
//
// Grid (tiles of a row, rows / 16 rounded up), block 128 (any size), no shared memory. Each block writes one tile. The tiles
// must be zero before the launch: parts past the matrix are not written.
// Macro: QUANT, the format. Bytes: each byte is read at least once and written once.
#include "quants.cuh"

#ifndef QUANT
#error "QUANT must be defined"
#endif
using Q = QUANT;

static_assert(Q::LOW == 2 || Q::LOW == 4 || Q::LOW == 8 || Q::LOW == 16 || Q::LOW == 32,
              "LOW must be 2, 4, 8, 16 or 32 bits");

// Codes of the weights of a tile, 0 past the matrix.
struct Codes {
    const u8* rows;
    size_t row_bytes;
    int row, k, n_rows, width;

    __device__ u32 at(int lane, int r, int block, int element) const {
        const int i = row + lane / 4 + 8 * r, j = k + 32 * block + element;
        if (i >= n_rows || j >= width) return 0;
        return Q::code(rows + i * row_bytes + (size_t)(j / Q::BLOCK) * Q::BLOCK_BYTES, j % Q::BLOCK);
    }
    __device__ u32 pair(int lane, int r, int block, int p, int odd) const {
        return at(lane, r, block, lane_weight<Q::RUN>(lane % 4, 2 * p + odd));
    }
};

// Word i of a plane of BITS bits that holds bits FROM, FROM + 1, ... of the codes.
template <int BITS, int FROM>
__device__ u32 plane_word(const Codes& codes, int i) {
    u32 word = 0;
    for (int odd = 0; odd < 2; ++odd) {
        for (int p = 0; p < 4; ++p) {
            if (BITS == 4) {
                word |= (codes.pair(i / 2 % 32, i % 2, i / 64, p, odd) >> FROM & 15) << (16 * odd + 4 * p);
            } else if (BITS == 2) {
                for (int r = 0; r < 2; ++r) {
                    const int at = Q::LOW == 4 ? p / 2 * 2 + p % 2 * 4 : 2 * p;
                    word |= (codes.pair(i % 32, r, i / 32, p, odd) >> FROM & 3) << (16 * odd + 8 * r + at);
                }
            } else {
                for (int r = 0; r < 4; ++r) {
                    const u32 bit = codes.pair(i % 32, r % 2, i / 32 * 2 + r / 2, p, odd) >> FROM & 1;
                    word |= bit << (16 * odd + 8 * (r / 2) + 4 * (r % 2) + p);
                }
            }
        }
    }
    return word;
}

// Word i of a plane whose codes are whole bytes.
__device__ u32 whole_word(const Codes& codes, int i) {
    constexpr int WORDS = Q::LOW < 8 ? 2 : Q::LOW / 4, EACH = 32 / Q::LOW;
    int lane, r, block, word;
    if (Q::LOW == 8) {
        word = i % 2, r = i / 2 % 2, lane = i / 4 % 32, block = i / 128;
    } else {
        word = i % 4 + (Q::LOW == 32 ? i / 128 % 2 * 4 : 0);
        lane = i / 4 % 32, r = i / (32 * WORDS) % 2, block = i / (64 * WORDS);
    }
    u32 value = 0;
    for (int e = 0; e < EACH; ++e) {
        const int n = word * EACH + e;
        const int place = Q::LOW == 8 ? n % 4 / 2 + n % 2 * 2 : e;
        value |= codes.at(lane, r, block, lane_weight<Q::RUN>(lane % 4, n)) << (place * Q::LOW) % 32;
    }
    return value;
}

extern "C" __global__ void repack(const unsigned char* rows, unsigned char* tiles, int n_rows, int width, size_t row_bytes) {
    const Codes codes{rows, row_bytes, (int)blockIdx.y * 16, (int)blockIdx.x * Q::TILE_K, n_rows, width};
    u8* tile = tiles + ((size_t)blockIdx.y * gridDim.x + blockIdx.x) * Q::BYTES;
    u32* words = (u32*)tile;
    constexpr int N = Q::TILE_K * 16 / 32;
    for (int i = threadIdx.x; i < N * Q::LOW; i += blockDim.x) {
        words[i] = Q::LOW <= 4 ? plane_word<Q::LOW == 2 ? 2 : 4, 0>(codes, i) : whole_word(codes, i);
    }
    if (Q::HIGH) {
        for (int i = threadIdx.x; i < N * Q::HIGH; i += blockDim.x) {
            words[N * Q::LOW + i] = plane_word<Q::HIGH == 2 ? 2 : 1, Q::LOW <= 4 ? Q::LOW : 0>(codes, i);
        }
    }
    if (Q::BLOCK == 1) return;
    constexpr int BLOCKS = Q::TILE_K / Q::BLOCK;
    for (int i = threadIdx.x; i < 16 * BLOCKS; i += blockDim.x) {
        const int row = codes.row + i / BLOCKS, block = codes.k / Q::BLOCK + i % BLOCKS;
        if (row < n_rows && block * Q::BLOCK < width) {
            Q::pack_row(tile, i / BLOCKS, i % BLOCKS, rows + row * row_bytes + (size_t)block * Q::BLOCK_BYTES);
        }
    }
}
