// Short names of the unsigned integer types, since NVRTC has no <cstdint>, and of the pragma that unrolls a loop.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define UNROLL _Pragma("unroll")  // on the line of its loop: `UNROLL for (...)`
