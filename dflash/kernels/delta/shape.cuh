// Shape of a linear-attention layer.
//
// Macros: KEY_HEADS (G) and VALUE_HEADS (H), numbers of heads; KEY_DIM (K) and VALUE_DIM (V), elements of a head. Value head
// h uses key head h % KEY_HEADS. Channels of the conv (C): q (KEY_HEADS, KEY_DIM), then k with the same shape, then v
// (VALUE_HEADS, VALUE_DIM).
#pragma once

#if !defined(KEY_HEADS) || !defined(VALUE_HEADS) || !defined(KEY_DIM) || !defined(VALUE_DIM)
#error "KEY_HEADS, VALUE_HEADS, KEY_DIM and VALUE_DIM must be defined"
#endif
static_assert(VALUE_HEADS % KEY_HEADS == 0, "value heads share key heads evenly");

constexpr int CHANNELS = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM;
constexpr int PENDING = 64, MAX_ROWS = PENDING;  // pending rows of a slot; rows of a sequence in a pass
