// Slots of a token: its N_USED routed experts, then its N_SHARED shared experts, 0 or 1.
#pragma once

#if !defined(N_USED) || !defined(N_SHARED)
#error "N_USED and N_SHARED must be defined"
#endif
static_assert(N_SHARED == 0 || N_SHARED == 1, "a layer has one shared expert or none");

constexpr int SLOTS = N_USED + N_SHARED;
