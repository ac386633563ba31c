// Shape of a layer of experts.
//
// Macros: MODEL_DIM, elements of a row; EXPERTS, experts of a layer; N_USED, routed experts of a token; N_SHARED, shared
// experts, 0 or 1; FFN_DIM and SHARED_FFN_DIM, inner values of an expert and of the shared expert, equal without one.
#pragma once

#include "slots.cuh"

#if !defined(MODEL_DIM) || !defined(EXPERTS) || !defined(FFN_DIM) || !defined(SHARED_FFN_DIM)
#error "MODEL_DIM, EXPERTS, FFN_DIM and SHARED_FFN_DIM must be defined"
#endif

__host__ __device__ constexpr int larger(int a, int b) { return a > b ? a : b; }
