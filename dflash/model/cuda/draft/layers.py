"""The layers of a draft model on a GPU: launches bound to the arrays of a pass. Each reads top to bottom as its formula.

The multiplies around a norm carry it (`SplitNorm`), except in DFlash 2, where convolutions stand between them.
"""

from types import SimpleNamespace
from typing import Any, NamedTuple

from dflash.kernels.arrays import GpuArray
from dflash.kernels.attention.cuda import Workspace
from dflash.kernels.block_attention.cuda import BlockAttend, DeviceBlocks
from dflash.kernels.block_conv.cuda import BlockConv
from dflash.kernels.linear.cuda import DecodeLinear
from dflash.kernels.linear.cuda_prefill import INNER_SCALE
from dflash.kernels.norm.cuda import RmsNorm
from dflash.kernels.norm.split import SplitNorm, carried
from dflash.kernels.rope.cuda import Rotate
from dflash.model.cuda.draft.rings import DeviceRings
from dflash.model.cuda.layers import launched
from dflash.model.cuda.ops import Norm
from dflash.model.cuda.weights import DeviceWeights
from dflash.model.draft.config import DraftConfig


class DraftBatch(NamedTuple):
    """Memory and layout of the rows of blocks.

    rings: keys and values of the contexts.
    blocks: blocks and the range of context positions that each sees.
    own: layout by which the blocks' own keys and values are written; see `rows_of`.
    workspace: scratch memory of attention.
    """

    rings: DeviceRings
    blocks: DeviceBlocks
    own: SimpleNamespace
    workspace: Workspace


class DraftLayerContext(NamedTuple):
    """Inputs from which the launches of a layer are built.

    space: intermediate arrays of a pass.
    i: index of the layer.
    """

    weights: DeviceWeights
    config: DraftConfig
    space: SimpleNamespace
    where: DraftBatch
    i: int

    def matrix(self, name: str) -> Any:
        """Return a weight of the layer."""
        return self.weights.matrix(f"blk.{self.i}.{name}.weight")

    def vector(self, name: str) -> Any:
        """Return a gain of the layer."""
        return self.weights.vector(f"blk.{self.i}.{name}.weight")


class DraftLayerNorms(NamedTuple):
    """Norms of a layer: before attention and before the feed forward."""

    attention: Norm
    ffn: Norm

    @classmethod
    def of(cls, parts: DraftLayerContext) -> "DraftLayerNorms":
        """Make the norms of a layer."""
        s, eps, found = parts.space, parts.config.norm_eps, list[Norm]()
        for part in ("attn", "ffn"):
            gain = parts.vector(f"{part}_norm")
            if parts.config.conv_width:
                found.append(RmsNorm(s.stream, gain, eps, half=s.normed, full=s.whole))
            elif parts.i == 0 and part == "attn":
                found.append(RmsNorm(s.stream, gain, eps, half=s.normed))
            else:
                found.append(split_norm(s, gain, eps, s.normed))
        return cls(*found)


def split_norm(space: SimpleNamespace, gain: GpuArray, eps: float, half: GpuArray) -> SplitNorm:
    """Return a norm of the stream that the multiplies around it carry."""
    return SplitNorm(space.stream, gain, eps, half=half, squares=space.squares)


class ConvPair:
    """The convolutions before and after a sublayer of DFlash 2, with taps made from the sublayer's input.

    Reads `normed` and `whole`. The sublayer reads `mixed` and writes `product`, which is added to `stream`.
    """

    def __init__(self, parts: DraftLayerContext, part: str) -> None:
        s = parts.space
        self.conv_proj = DecodeLinear(s.normed, [parts.matrix(f"{part}_conv_proj")], [s.change])
        taps = s.change, parts.weights.vector(f"blk.{parts.i}.{part}_conv_base")
        self.mix = BlockConv(s.whole, *taps, each=parts.config.block, side=0, out=s.mixed)
        self.after = BlockConv(s.product, *taps, each=parts.config.block, side=1, out=s.stream)

    def before(self, n: int) -> None:
        """Compute the taps and the sublayer's input."""
        self.conv_proj(n)
        self.mix(n)


class Attention:
    """Softmax attention over the context and the block; reads `x` and writes or adds its output to `out`."""

    def __init__(self, parts: DraftLayerContext, norms: DraftLayerNorms) -> None:
        _, config, s, where, i = parts
        matrices = [parts.matrix(name) for name in ("attn_q", "attn_k", "attn_v")]
        self.project = DecodeLinear(s.x, matrices, [s.query, s.key, s.value], **carried(before=norms.attention))
        gains = parts.vector("attn_q_norm"), parts.vector("attn_k_norm")
        inputs = s.query, s.key, s.value, *gains, s.cos, s.sin, where.own
        self.rotate = Rotate(*inputs, eps=config.norm_eps, q=s.rotated, k=s.k, v=s.v)
        k, v = (pages.reshape(-1, *pages.shape[2:])[: s.n_rows] for pages in (s.k, s.v))
        self.attend = BlockAttend(
            s.rotated,
            k,
            v,
            where.rings.k[i],
            where.rings.v[i],
            where.blocks,
            window=config.windows[i],
            causal=config.causal[i],
            out=s.attended,
            workspace=where.workspace,
        )
        output, adds = parts.matrix("attn_output"), s.out is s.stream
        self.attn_output = DecodeLinear(s.attended, [output], [s.out], add=adds, **carried(behind=norms.ffn))

    def __call__(self, n: int, n_sequences: int) -> None:
        """Launch for `n` rows."""
        self.project(n)
        self.rotate(n)
        self.attend(n, n_sequences=n_sequences)
        self.attn_output(n)


class DraftFeedForward:
    """``down(silu(gate x) * up x)``; reads `x` and writes or adds its output to `out`."""

    def __init__(self, parts: DraftLayerContext, norm: Norm, behind: Norm) -> None:
        s = parts.space
        matrices = [parts.matrix(name) for name in ("ffn_gate", "ffn_up")]
        self.gate_up = DecodeLinear(s.x, matrices, [s.inner], gated=True, **carried(before=norm))
        adds, scale = s.out is s.stream, 1 / INNER_SCALE
        down = parts.matrix("ffn_down")
        self.ffn_down = DecodeLinear(s.inner, [down], [s.out], add=adds, scale=scale, **carried(behind=behind))

    def __call__(self, n: int) -> None:
        """Launch for `n` rows."""
        self.gate_up(n)
        self.ffn_down(n)


class Layer:
    """Norm, attention, add; norm, feed forward, add; in DFlash 2 with convolutions around both.

    `behind` is the norm that follows the layer.
    """

    def __init__(self, parts: DraftLayerContext, norms: DraftLayerNorms, behind: Norm) -> None:
        has_convs = parts.config.conv_width > 0
        self.attn_norm, self.ffn_norm = launched(norms.attention), launched(norms.ffn)
        self.attn_conv, self.ffn_conv = (ConvPair(parts, part) if has_convs else None for part in ("attn", "ffn"))
        self.attention = Attention(parts, norms)
        self.ffn = DraftFeedForward(parts, norms.ffn, behind)

    def __call__(self, n: int, n_sequences: int) -> None:
        """Launch for `n` rows of `n_sequences` blocks."""
        if self.attn_norm:
            self.attn_norm(n)
        if self.attn_conv:
            self.attn_conv.before(n)
        self.attention(n, n_sequences)
        if self.attn_conv:
            self.attn_conv.after(n)
        if self.ffn_norm:
            self.ffn_norm(n)
        if self.ffn_conv:
            self.ffn_conv.before(n)
        self.ffn(n)
        if self.ffn_conv:
            self.ffn_conv.after(n)
