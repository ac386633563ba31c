"""Attention on a GPU of a layer with its own number of heads, a window, and perhaps the keys and values of another layer."""

from dflash.kernels.arrays import GpuArray
from dflash.kernels.attention.cuda_fallback import AttendRows
from dflash.kernels.attention.cuda_gate import HeadGate
from dflash.kernels.kv_types import is_quantized
from dflash.kernels.rope.cuda import Rotate
from dflash.model.cuda.layers import LayerContext
from dflash.model.cuda.ops import Op, Ops
from dflash.model.layered.sizes import LayerSizes

_TILED = 256
"""Largest head of the attention kernels that read tiles; they have no window."""


class LayeredAttention:
    """See `dflash.model.layered.attention.LayeredAttention`.

    Reads `normed`; writes `added` in an architecture with normed outputs, else adds to `stream`.
    """

    def __init__(self, parts: LayerContext, layer: int, cache: tuple[GpuArray, GpuArray]) -> None:
        weights, config, s, ops = parts
        sizes, blocks, matrix = config.layers[layer], config.blocks, weights.matrix
        outs = {"attn_q.weight": s.query, "attn_k.weight": s.key, "attn_v.weight": s.value}
        outs |= {"attn_gate.weight": s.head_gate} if sizes.gate else {}
        names = [name for name in outs if name in weights]
        self.project = ops.linear(s.normed, [matrix(name) for name in names], [outs[name] for name in names])
        # scores are divided by the root of the head size; where they should not be, queries are larger by it
        gain = weights.vector("attn_q_norm.weight", scale=sizes.head_size**0.5 if blocks.unscaled else 1.0)
        key = value = k_norm = None
        if "attn_k.weight" in weights:
            key, value = s.key, s.value if "attn_v.weight" in weights else s.key
            k_norm = weights.vector("attn_k_norm.weight")
        cos, sin = (s.window_cos, s.window_sin) if sizes.window else (s.cos, s.sin)
        rotated = s.rotated.reshape(s.n_rows, sizes.heads, sizes.head_size)
        inputs = s.query, key, value, gain, k_norm, cos, sin, ops.batch
        places = {"q": rotated, "k": cache[0], "v": cache[1]}
        self.rotate = Rotate(*inputs, eps=config.norm_eps, value_norm=blocks.unscaled, **places)
        self.attend = _attention(sizes, ops, rotated, cache, s.attended)
        self.gate = HeadGate(s.head_gate, s.attended) if sizes.gate else None
        output = matrix("attn_output.weight")
        if blocks.normed_outputs:
            self.output = ops.linear(s.attended, [output], [s.added])
        else:
            self.output = ops.add(s.attended, output, s.stream, behind=None)

    def __call__(self, n: int) -> None:
        """Launch for `n` rows."""
        self.project(n)
        self.rotate(n)
        self.attend(n)
        if self.gate:
            self.gate(n)
        self.output(n)


def _attention(sizes: LayerSizes, ops: Ops, rotated: GpuArray, cache: tuple[GpuArray, GpuArray], out: GpuArray) -> Op:
    """Return the launch of attention: over tiles, unless there is a window, a large head or a quantized cache to prefill."""
    unpacks = ops.prefill and is_quantized(cache[0])
    if sizes.window or sizes.head_size > _TILED or unpacks:
        return AttendRows(rotated, *cache, ops.batch, out, window=sizes.window)
    return ops.attention(rotated, cache, out, None)
