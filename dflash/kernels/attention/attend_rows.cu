// Attention of any rows over a cache of any type, for float32 caches, layers with a window, and heads of more than 256
// elements: out = softmax(q k^T / sqrt(HEAD_DIM)) v over the last WINDOW positions that a row sees, times sigmoid(gate) if
// GATED.
//
// A block handles a row and a query head. Its warps take the positions in turn, EACH at a time, with their own partial sums,
// which are combined in order at the end. Ancestors in a tree are visited in the order of their depth. So a row's bits depend
// on what it sees and on its position only: a chain, a path of a tree and a prompt have the same.
//
// Grid (QUERY_HEADS, rows), block 32 * WARPS, shared memory 4 * WARPS * HEAD_DIM bytes and less than 1 KiB (static). Macros:
// HEAD_DIM, elements of a head; GROUP_SIZE, query heads that share a KV head; KV_HEADS; WINDOW, positions that a row sees at
// most, itself included, 0 for all; KEY_BITS and VALUE_BITS, 32 for float32, of queries, too, 16 for float16, 8 for q8_0 and 4
// for q4_0, with float16 queries; GATED, 1 if the output is gated.
// Bytes: keys and values of what a row sees once for each query head, mostly from the L2 cache.
#include "../gpu/include/activation.cuh"
#include "../gpu/include/half.cuh"
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/warp.cuh"

#if !defined(HEAD_DIM) || !defined(GROUP_SIZE) || !defined(KV_HEADS) || !defined(WINDOW) || !defined(KEY_BITS) || \
    !defined(VALUE_BITS) || !defined(GATED)
#error "HEAD_DIM, GROUP_SIZE, KV_HEADS, WINDOW, KEY_BITS, VALUE_BITS and GATED must be defined"
#endif
static_assert(HEAD_DIM % 16 == 0 && HEAD_DIM <= 512, "HEAD_DIM must be 16, 32, ... or 512");
static_assert(KEY_BITS > 8 || (HEAD_DIM % 32 == 0 && HEAD_DIM <= 256), "quantized heads have 32, 64, ... or 256 elements");
static_assert(KEY_BITS == VALUE_BITS || (KEY_BITS <= 8 && VALUE_BITS <= 8), "types that differ are quantized");

constexpr int PAGE = 256, PENDING = 64, WARPS = 8, EACH = 4, QUERY_HEADS = GROUP_SIZE * KV_HEADS;
constexpr int VECTORS = HEAD_DIM / 4, PER_LANE = (VECTORS + 31) / 32;  // four elements each

// Bytes of a stored head.
template <int BITS>
constexpr int HEAD_BYTES = HEAD_DIM * BITS / 8 + (BITS <= 8 ? 16 : 0);

__device__ __forceinline__ float4 of_halves(uint2 h) {
    return make_float4(to_float(h.x & 0xffff), to_float(h.x >> 16), to_float(h.y & 0xffff), to_float(h.y >> 16));
}

// Elements 4 * vector to 4 * vector + 3 of a stored head.
template <int BITS>
__device__ __forceinline__ float4 load_vector(const u8* head, int vector) {
    if (BITS == 32) return ((const float4*)head)[vector];
    if (BITS == 16) return of_halves(((const uint2*)head)[vector]);
    // of 4 bits, the upper halves of the bytes of a block are its elements from 16 on
    const u32 bytes = BITS == 8 ? ((const u32*)head)[vector] : ((const u32*)head)[vector / 8 * 4 + vector % 4] >> (vector & 4);
    const float scale = to_float(((const u16*)(head + HEAD_DIM * BITS / 8))[vector / 8]);
    const auto value = [&](u32 byte) {
        const int number = BITS == 8 ? (int)(signed char)byte : (int)(byte & 15) - 8;
        return to_float(to_half(__fmul_rn((float)number, scale)));
    };
    return make_float4(value(bytes), value(bytes >> 8), value(bytes >> 16), value(bytes >> 24));
}

__device__ __forceinline__ float dot(const float4& a, const float4& b, float sum) {
    return __fmaf_rn(a.w, b.w, __fmaf_rn(a.z, b.z, __fmaf_rn(a.y, b.y, __fmaf_rn(a.x, b.x, sum))));
}

// sum += weight * value
__device__ __forceinline__ void add_scaled(float4& sum, float weight, const float4& value) {
    sum.x = __fmaf_rn(weight, value.x, sum.x), sum.y = __fmaf_rn(weight, value.y, sum.y);
    sum.z = __fmaf_rn(weight, value.z, sum.z), sum.w = __fmaf_rn(weight, value.w, sum.w);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
attend_rows(const unsigned char* q, const unsigned char* k, const unsigned char* v, const int* counts, const int* first,
            const int* sequence, const int* parent, const int* depth, const int* length, const int* pages, int max_pages,
            const float* gate, unsigned short* out) {
    __shared__ int path[PENDING];
    __shared__ float max_scores[WARPS], sums[WARPS];
    __shared__ float4 outputs[WARPS][VECTORS];
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int row = blockIdx.y, head = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (row >= counts[0]) return;
    const int s = sequence[row], begin = first[s], own = row - begin, committed = length[s], row_depth = depth[row];
    const bool chain = row_depth == own;
    if (!chain && threadIdx.x == 0) {
        for (int at = own; at >= 0; at = parent[begin + at]) path[depth[begin + at]] = at;
    }
    __syncthreads();  // `path` is complete

    const float scale = 1.0f / sqrtf((float)HEAD_DIM), minus_infinity = __int_as_float(0xff800000);
    const size_t at = (size_t)row * QUERY_HEADS + head;
    const int last = committed + row_depth, start = WINDOW > 0 ? max(last + 1 - WINDOW, 0) : 0;
    float4 query[PER_LANE], o[PER_LANE];
    float max_score = minus_infinity, sum = 0.0f;
    UNROLL for (int i = 0; i < PER_LANE; ++i) {
        query[i] = o[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (lane + 32 * i >= VECTORS) continue;
        const float4 x = KEY_BITS == 32 ? ((const float4*)q)[at * VECTORS + lane + 32 * i]
                                        : of_halves(((const uint2*)q)[at * VECTORS + lane + 32 * i]);
        query[i] = make_float4(__fmul_rn(x.x, scale), __fmul_rn(x.y, scale), __fmul_rn(x.z, scale), __fmul_rn(x.w, scale));
    }
    for (int position = start + warp; position <= last; position += EACH * WARPS) {
        size_t stored[EACH];
        float scores[EACH], largest = max_score;
        float4 values[EACH][PER_LANE];
        UNROLL for (int j = 0; j < EACH; ++j) {
            // positions past the last one read its row, and get no weight
            const int here = min(position + j * WARPS, last);
            const int index = chain || here < committed ? here : committed + path[here - committed];
            const size_t cache_row = (size_t)pages[(size_t)s * max_pages + index / PAGE] * PAGE + index % PAGE;
            stored[j] = cache_row * KV_HEADS + head / GROUP_SIZE;
        }
        UNROLL for (int j = 0; j < EACH; ++j) {
            scores[j] = 0.0f;
            UNROLL for (int i = 0; i < PER_LANE; ++i) {
                if (lane + 32 * i >= VECTORS) continue;
                scores[j] = dot(query[i], load_vector<KEY_BITS>(k + stored[j] * HEAD_BYTES<KEY_BITS>, lane + 32 * i), scores[j]);
                values[j][i] = load_vector<VALUE_BITS>(v + stored[j] * HEAD_BYTES<VALUE_BITS>, lane + 32 * i);
            }
        }
        UNROLL for (int j = 0; j < EACH; ++j) {
            scores[j] = position + j * WARPS <= last ? warp_sum(scores[j]) : minus_infinity;
            largest = fmaxf(largest, scores[j]);
        }
        const float rescale = expf(max_score - largest);
        sum = __fmul_rn(sum, rescale);
        UNROLL for (int i = 0; i < PER_LANE; ++i) {
            o[i] = make_float4(__fmul_rn(o[i].x, rescale), __fmul_rn(o[i].y, rescale), __fmul_rn(o[i].z, rescale),
                               __fmul_rn(o[i].w, rescale));
        }
        UNROLL for (int j = 0; j < EACH; ++j) {
            const float weight = expf(scores[j] - largest);
            sum = __fadd_rn(sum, weight);
            UNROLL for (int i = 0; i < PER_LANE; ++i) {
                if (lane + 32 * i < VECTORS) add_scaled(o[i], weight, values[j][i]);
            }
        }
        max_score = largest;
    }
    UNROLL for (int i = 0; i < PER_LANE; ++i) {
        if (lane + 32 * i < VECTORS) outputs[warp][lane + 32 * i] = o[i];
    }
    if (lane == 0) max_scores[warp] = max_score, sums[warp] = sum;
    __syncthreads();  // the partial sums of all warps are stored
    if (threadIdx.x >= VECTORS) return;
    float largest = minus_infinity, total = 0.0f;
    UNROLL for (int w = 0; w < WARPS; ++w) largest = fmaxf(largest, max_scores[w]);
    float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    UNROLL for (int w = 0; w < WARPS; ++w) {
        const float weight = expf(max_scores[w] - largest);  // 0 for a warp without positions
        add_scaled(x, weight, outputs[w][threadIdx.x]);
        total = __fmaf_rn(weight, sums[w], total);
    }
    x = make_float4(__fdiv_rn(x.x, total), __fdiv_rn(x.y, total), __fdiv_rn(x.z, total), __fdiv_rn(x.w, total));
    if (GATED) {
        const float4 g = ((const float4*)gate)[(2 * at + 1) * VECTORS + threadIdx.x];
        x.x = mul_sigmoid_rn(x.x, g.x), x.y = mul_sigmoid_rn(x.y, g.y);
        x.z = mul_sigmoid_rn(x.z, g.z), x.w = mul_sigmoid_rn(x.w, g.w);
    }
    ((uint2*)out)[at * VECTORS + threadIdx.x] = half4_saturated(x.x, x.y, x.z, x.w);
}
