// The formats of a launch with weights of several, which are numbered in the order of the macro QUANTS.
#pragma once
#include "quants.cuh"

template <class Q, class... Others>
struct Formats {
    using Rest = Formats<Others...>;
    static constexpr int BYTES = Q::BYTES > Rest::BYTES ? Q::BYTES : Rest::BYTES;
    static constexpr int MINIMA = Q::MINIMA > Rest::MINIMA ? Q::MINIMA : Rest::MINIMA;
    __device__ static int bytes(int type) { return type == 0 ? Q::BYTES : Rest::bytes(type - 1); }
    __device__ static int tile_k(int type) { return type == 0 ? Q::TILE_K : Rest::tile_k(type - 1); }
};
template <class Q>
struct Formats<Q> {
    static constexpr int BYTES = Q::BYTES, MINIMA = Q::MINIMA;
    __device__ static int bytes(int) { return Q::BYTES; }
    __device__ static int tile_k(int) { return Q::TILE_K; }
};
