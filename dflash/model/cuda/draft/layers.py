"""The layers of a draft on a GPU: launches bound to the arrays of a pass. Each reads top to bottom as its formula."""

from types import SimpleNamespace
from typing import Any, NamedTuple

from dflash.kernels.attention.cuda import Workspace
from dflash.kernels.block_attention.cuda import BlockAttend, DeviceBlocks
from dflash.kernels.block_conv.cuda import BlockConv
from dflash.kernels.linear.cuda import Launch
from dflash.kernels.linear.cuda_prefill import INNER_SCALE
from dflash.kernels.norm.cuda import RmsNorm
from dflash.kernels.rope.cuda import Rotate
from dflash.model.cuda.draft.rings import DeviceRings
from dflash.model.cuda.weights import DeviceWeights
from dflash.model.draft.config import DraftConfig


class Where(NamedTuple):
    """Where the rows of blocks belong.

    Parameters
    ----------
    rings : DeviceRings
        Of their contexts.
    blocks : DeviceBlocks
        What they see.
    own : SimpleNamespace
        Where their own keys and values are written; see `rows_of`.
    workspace : Workspace
        Of attention.
    """

    rings: DeviceRings
    blocks: DeviceBlocks
    own: SimpleNamespace
    workspace: Workspace


class Around:
    """The convolutions before and after a sublayer of DFlash 2, with taps made from the sublayer's input.

    Reads `normed` and `whole`; the sublayer reads `mixed` and leaves `product`, which is added to `stream`.
    """

    def __init__(self, weights: DeviceWeights, config: DraftConfig, space: Any, i: int, part: str) -> None:
        s, name = space, f"blk.{i}.{part}_conv"
        self.conv_proj = Launch(s.normed, [weights.matrix(f"{name}_proj.weight")], [s.change])
        taps = s.change, weights.vector(f"{name}_base")
        self.mix = BlockConv(s.whole, *taps, each=config.block, side=0, out=s.mixed)
        self.after = BlockConv(s.product, *taps, each=config.block, side=1, out=s.stream)

    def before(self, n: int) -> None:
        """Make the taps, and the sublayer's input."""
        self.conv_proj(n)
        self.mix(n)


class Attention:
    """Softmax attention over the context and the block; reads `x` and leaves or adds its output in `out`."""

    def __init__(self, weights: DeviceWeights, config: DraftConfig, space: Any, where: Where, i: int) -> None:
        s, names = space, ("attn_q.weight", "attn_k.weight", "attn_v.weight")
        self.project = Launch(s.x, [weights.matrix(f"blk.{i}.{n}") for n in names], [s.query, s.key, s.value])
        norms = weights.vector(f"blk.{i}.attn_q_norm.weight"), weights.vector(f"blk.{i}.attn_k_norm.weight")
        inputs = s.query, s.key, s.value, *norms, s.cos, s.sin, where.own
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
        output = weights.matrix(f"blk.{i}.attn_output.weight")
        self.attn_output = Launch(s.attended, [output], [s.out], add=s.out is s.stream)

    def __call__(self, n: int, n_sequences: int) -> None:
        """Run `n` rows."""
        self.project(n)
        self.rotate(n)
        self.attend(n, n_sequences=n_sequences)
        self.attn_output(n)


class FeedForward:
    """``down(silu(gate x) * up x)``; reads `x` and leaves or adds its output in `out`."""

    def __init__(self, weights: DeviceWeights, space: Any, i: int) -> None:
        s, names = space, (f"blk.{i}.ffn_gate.weight", f"blk.{i}.ffn_up.weight")
        self.gate_up = Launch(s.x, [weights.matrix(name) for name in names], [s.inner], gated=True)
        down = weights.matrix(f"blk.{i}.ffn_down.weight")
        self.ffn_down = Launch(s.inner, [down], [s.out], add=s.out is s.stream, scale=1 / INNER_SCALE)

    def __call__(self, n: int) -> None:
        """Run `n` rows."""
        self.gate_up(n)
        self.ffn_down(n)


class Layer:
    """Norm, attention, add; norm, feed forward, add; in DFlash 2 with convolutions around both."""

    def __init__(self, weights: DeviceWeights, config: DraftConfig, space: Any, where: Where, i: int) -> None:
        parts, has_convs = ("attn", "ffn"), config.conv_width > 0
        whole = space.whole if has_convs else None
        self.attn_norm, self.ffn_norm = (
            RmsNorm(
                space.stream, weights.vector(f"blk.{i}.{part}_norm.weight"), config.norm_eps, half=space.normed, full=whole
            )
            for part in parts
        )
        self.attn_conv, self.ffn_conv = (Around(weights, config, space, i, part) if has_convs else None for part in parts)
        self.attention = Attention(weights, config, space, where, i)
        self.ffn = FeedForward(weights, space, i)

    def __call__(self, n: int, n_sequences: int) -> None:
        """Run `n` rows of `n_sequences` blocks."""
        self.attn_norm(n)
        if self.attn_conv:
            self.attn_conv.before(n)
        self.attention(n, n_sequences)
        if self.attn_conv:
            self.attn_conv.after(n)
        self.ffn_norm(n)
        if self.ffn_conv:
            self.ffn_conv.before(n)
        self.ffn(n)
        if self.ffn_conv:
            self.ffn_conv.after(n)
