// Shape of a linear-attention layer.
//
// Macros: KEY_HEADS (G) and VALUE_HEADS (H), numbers of heads; KEY_DIM (K) and VALUE_DIM (V), elements of a head; HEAD_RUN,
// neighbouring value heads that share a key head, 1 or H / G. Value head h uses key head h / HEAD_RUN % G. Channels of the conv (C): q (KEY_HEADS, KEY_DIM), then k with the same shape, then v
// (VALUE_HEADS, VALUE_DIM).
#pragma once

#if !defined(KEY_HEADS) || !defined(VALUE_HEADS) || !defined(KEY_DIM) || !defined(VALUE_DIM) || !defined(HEAD_RUN)
#error "KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM and HEAD_RUN must be defined"
#endif
static_assert(VALUE_HEADS % KEY_HEADS == 0, "value heads share key heads evenly");
static_assert(HEAD_RUN == 1 || HEAD_RUN == VALUE_HEADS / KEY_HEADS, "heads of a group are apart, or all neighbours");

__device__ constexpr int key_head(int head) { return head / HEAD_RUN % KEY_HEADS; }
// True for one value head of each key head, which stores what is common to them.
__device__ constexpr bool is_first_of_group(int head) { return head % HEAD_RUN == 0 && head / HEAD_RUN < KEY_HEADS; }

constexpr int CHANNELS = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM;
constexpr int PENDING = 64, MAX_ROWS = PENDING;  // accepted rows of a sequence in a batch; rows of a sequence in a pass
