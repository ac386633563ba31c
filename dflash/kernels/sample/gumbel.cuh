// Gumbel noise, bit for bit as gumbel.py and log.py compute it: the same multiplications, additions and fused multiply-adds
// in the same order.
#pragma once
#include "../gpu/include/types.cuh"

// log(1 + f) + e * ln 2, f from -0.293 to 0.415.
__device__ __forceinline__ float log_of_parts(float f, float e) {
    const float factors[8] = {-1.1514610310e-1f, 1.1676998740e-1f, -1.2420140846e-1f, 1.4249322787e-1f,
                              -1.6668057665e-1f, 2.0000714765e-1f, -2.4999993993e-1f, 3.3333331174e-1f};
    float p = 7.0376836292e-2f;
    UNROLL for (int i = 0; i < 8; ++i) p = __fmaf_rn(p, f, factors[i]);
    const float square = __fmul_rn(f, f);
    float low = __fmul_rn(__fmul_rn(p, f), square);
    low = __fmaf_rn(e, -2.12194440e-4f, low);
    low = __fmaf_rn(-0.5f, square, low);
    return __fmaf_rn(e, 0.693359375f, __fadd_rn(f, low));
}

// f and e with x = (1 + f) * 2^e, for positive normal x.
__device__ __forceinline__ void split(float x, float& f, float& e) {
    const int shifted = __float_as_int(x) - 0x3f3504f3;
    e = __int2float_rn(shifted >> 23);
    f = __fsub_rn(__int_as_float((shifted & 0x007fffff) + 0x3f3504f3), 1.0f);
}

// Uniform float in (0, 1) of a random word.
__device__ __forceinline__ float uniform(unsigned word) {
    return __fmul_rn(__fadd_rn(__uint2float_rn(word), 0.5f), 2.3283064365386963e-10f);
}

// -log(-log(uniform(word))), accurate at both ends.
__device__ __forceinline__ float gumbel_of(unsigned word) {
    float f, e;
    split(uniform(~word), f, e);
    if (word < 1u << 30) f = -uniform(word), e = 0.0f;
    split(-log_of_parts(f, e), f, e);
    return -log_of_parts(f, e);
}

struct Words {
    unsigned w[4];
};

// Philox4x32-10 (Salmon et al. 2011): four words of a counter.
__device__ __forceinline__ Words philox(unsigned counter, unsigned position, unsigned long long seed) {
    unsigned key0 = (unsigned)seed, key1 = (unsigned)(seed >> 32);
    unsigned c0 = counter, c1 = position, c2 = 0, c3 = 0;
    UNROLL for (int round = 0; round < 10; ++round) {
        const unsigned high0 = __umulhi(c0, 0xD2511F53u), low0 = c0 * 0xD2511F53u;
        const unsigned high1 = __umulhi(c2, 0xCD9E8D57u), low1 = c2 * 0xCD9E8D57u;
        c0 = high1 ^ c1 ^ key0, c1 = low1, c2 = high0 ^ c3 ^ key1, c3 = low0;
        key0 += 0x9E3779B9u, key1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

// Philox counter of a token. Its four words belong to the tokens t, t + 16, t + 32 and t + 48, where t is among the first 16
// of a group of 64.
__device__ __forceinline__ unsigned counter_of(unsigned token) { return token / 64 * 16 + token % 16; }

// Noise of a token at a position of a sequence with seed `seed`.
__device__ __forceinline__ float gumbel(unsigned token, unsigned position, unsigned long long seed) {
    const Words words = philox(counter_of(token), position, seed);
    const unsigned word = token / 16 % 4;
    return gumbel_of(word == 0 ? words.w[0] : word == 1 ? words.w[1] : word == 2 ? words.w[2] : words.w[3]);
}
