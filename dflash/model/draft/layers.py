"""The layers of a draft model. Each reads top to bottom as its formula; attributes are named like tensors in the file."""

from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray

from dflash.kernels import block_attention, block_conv, norm, rope
from dflash.kernels.block_attention import Blocks
from dflash.kernels.linear import PackedLinear
from dflash.kernels.profile import timed
from dflash.model.draft.config import DraftConfig
from dflash.model.draft.files.source import DraftLayerWeights
from dflash.model.draft.state import Rings
from dflash.model.layers import FeedForward
from dflash.model.workspace import RowArrays

rms_norm, turn = timed("norm")(norm.rms_norm), timed("rope")(rope.turn)
block_attend, convolve = timed("attention")(block_attention.block_attend), timed("conv")(block_conv.block_conv)

Floats = NDArray[np.float32]


class ConvPair:
    """The convolutions before and after a sublayer of DFlash 2, with taps made from the sublayer's input.

    Reads `normed`. The sublayer reads `mixed` and writes `product`, which is added to `stream`.
    """

    def __init__(self, weights: DraftLayerWeights, part: str, space: RowArrays) -> None:
        a = space.all
        self.conv_base = weights.vector(f"{part}_conv_base")
        self.conv_proj = PackedLinear(a.normed, [weights.matrix(f"{part}_conv_proj.weight")], [a.change], name="conv taps")

    def before(self, s: SimpleNamespace, blocks: Blocks, n: int) -> None:
        """Compute the taps and the sublayer's input."""
        self.conv_proj(n)
        convolve(s.normed, s.change, self.conv_base, blocks.row_starts, side=0, out=s.mixed)

    def after(self, s: SimpleNamespace, blocks: Blocks) -> None:
        """Add the sublayer's output to the stream."""
        convolve(s.product, s.change, self.conv_base, blocks.row_starts, side=1, out=s.stream, add=True)


class Attention:
    """Softmax attention over the context and the block; reads `x` and writes or adds its output to `out`."""

    def __init__(
        self,
        weights: DraftLayerWeights,
        config: DraftConfig,
        space: RowArrays,
        rings: Rings,
        layer: int,
        *,
        x: Floats,
        out: Floats,
        add: bool,
    ) -> None:
        a = space.all
        names = "attn_q.weight", "attn_k.weight", "attn_v.weight"
        self.project = PackedLinear(
            x, [weights.matrix(name) for name in names], [a.query, a.key, a.value], name="projections"
        )
        self.attn_output = PackedLinear(
            a.attended, [weights.matrix("attn_output.weight")], [out], add=add, name="attention output"
        )
        self.attn_q_norm, self.attn_k_norm = weights.vector("attn_q_norm.weight"), weights.vector("attn_k_norm.weight")
        self.ring_k, self.ring_v = rings.k[layer], rings.v[layer]
        self.window, self.causal = config.windows[layer], config.causal[layer]
        self.eps, self.width = config.norm_eps, config.head_size

    def __call__(self, s: SimpleNamespace, blocks: Blocks, n: int) -> None:
        """Run the first `n` rows of the workspace."""
        self.project(n)
        q, k, v = (rows.reshape(n, -1, self.width) for rows in (s.query, s.key, s.value))
        turn(q, self.attn_q_norm, s.cos, s.sin, eps=self.eps)
        turn(k, self.attn_k_norm, s.cos, s.sin, eps=self.eps)
        block_attend(q, k, v, self.ring_k, self.ring_v, blocks, window=self.window, causal=self.causal, out=s.attended)
        self.attn_output(n)


class Layer:
    """Norm, attention, add; norm, feed forward, add; in DFlash 2 with convolutions around both."""

    def __init__(self, weights: DraftLayerWeights, config: DraftConfig, space: RowArrays, rings: Rings, layer: int) -> None:
        a, has_convs = space.all, config.conv_width > 0
        self.attn_norm, self.ffn_norm = weights.vector("attn_norm.weight"), weights.vector("ffn_norm.weight")
        self.attn_conv, self.ffn_conv = (ConvPair(weights, part, space) if has_convs else None for part in ("attn", "ffn"))
        ends = {"x": a.mixed, "out": a.product} if has_convs else {"x": a.normed, "out": a.stream}
        self.attention = Attention(weights, config, space, rings, layer, **ends, add=not has_convs)
        self.ffn = FeedForward(weights, inner=a.inner, **ends, add=not has_convs)
        self.eps = config.norm_eps

    def __call__(self, s: SimpleNamespace, blocks: Blocks, n: int) -> None:
        """Run the first `n` rows of the workspace, `s`."""
        rms_norm(s.stream, self.attn_norm, self.eps, out=s.normed)
        if self.attn_conv:
            self.attn_conv.before(s, blocks, n)
        self.attention(s, blocks, n)
        if self.attn_conv:
            self.attn_conv.after(s, blocks)
        rms_norm(s.stream, self.ffn_norm, self.eps, out=s.normed)
        if self.ffn_conv:
            self.ffn_conv.before(s, blocks, n)
        self.ffn(n)
        if self.ffn_conv:
            self.ffn_conv.after(s, blocks)
