"""Block draft models as programs."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from dflash.model.draft.config import DraftConfig
from dflash.model.network.blocks import gated_feed_forward
from dflash.model.network.ops import Angles, BlockAttendOp, BlockConvOp, Buffer, EmbedOp, TurnOp
from dflash.model.network.program import Names, Program
from dflash.model.network.target import rotation
from dflash.model.rope import inverse_frequencies

Sublayer = Callable[[Buffer], Buffer]


def draft(config: DraftConfig) -> tuple[Program, Buffer]:
    """Return the network of a draft model, from the tokens of blocks to the residual stream before the last norm."""
    net, x = Program(), Buffer("stream", (config.width,), kept=True)
    net.do(EmbedOp("token_embd.weight", x, config.embed_scale))
    angles = rotation(net, *inverse_frequencies(config))
    for i in range(config.n_layers):
        layer(net, Names(i, f"blk.{i}.", ()), config, x, angles)
    net.begin()
    return net, x


def layer(net: Program, names: Names, config: DraftConfig, x: Buffer, angles: Angles) -> None:
    """Norm, attention, add; norm, feed forward, add; in DFlash 2 with convolutions around both."""
    net.begin()
    attend = partial(attention, net, names, config, angles)
    feed = partial(gated_feed_forward, net, names, size=config.ffn)
    if config.conv_width:
        of_parts = (("attn", attend), ("ffn", feed))
        attend, feed = (partial(convolved, net, names, config, part, sublayer=inner) for part, inner in of_parts)
    net.add(x, attend(net.norm(x, names("attn_norm.weight"))))
    net.add(x, feed(net.norm(x, names("ffn_norm.weight"))))


def attention(net: Program, names: Names, config: DraftConfig, angles: Angles, x: Buffer) -> Buffer:
    """Softmax attention over the context and the block."""
    heads = {"q": config.heads, "k": config.kv_heads, "v": config.kv_heads}
    widths = {names(f"attn_{part}.weight"): n * config.head_size for part, n in heads.items()}
    query, key, value = net.linear(x, widths, "projections")
    net.do(TurnOp(names("attn_q_norm.weight"), angles, query))
    net.do(TurnOp(names("attn_k_norm.weight"), angles, key))
    i, attended = names.layer, Buffer("attended", query.shape)
    net.do(BlockAttendOp(query, key, value, i, config.windows[i], config.causal[i], attended))
    return net.product(attended, names("attn_output.weight"), config.width, "attention output")


def convolved(net: Program, names: Names, config: DraftConfig, part: str, x: Buffer, *, sublayer: Sublayer) -> Buffer:
    """A sublayer between two convolutions, with taps made from its input."""
    n_taps = 2 * config.conv_width * (config.width // config.conv_group)
    taps = net.product(x, names(f"{part}_conv_proj.weight"), n_taps, "conv taps"), names(f"{part}_conv_base")
    net.do(BlockConvOp(x, *taps, 0, mixed := Buffer("mixed", x.shape)))
    net.do(BlockConvOp(sublayer(mixed), *taps, 1, out := Buffer("product", x.shape)))
    return out


class ContextNetwork(NamedTuple):
    """The network that makes keys and values of every layer from features of the target.

    features: input (F * D,): features of the target layers side by side.
    """

    program: Program
    features: Buffer
    made: tuple[tuple[Buffer, Buffer], ...]


def context(config: DraftConfig) -> ContextNetwork:
    """``c = norm(fc [features])``; for every layer ``k = rope(norm(Wk c))`` at the position, ``v = Wv c``."""
    net, features = Program(), Buffer("features", (len(config.target_layer_ids) * config.width,), kept=True)
    fused = net.product(features, "fc.weight", config.width, "fc")
    net.norm(fused, "enc.output_norm.weight", out=fused)
    names = [Names(i, f"blk.{i}.", ()) for i in range(config.n_layers)]
    widths = {each(f"attn_{part}.weight"): config.kv_heads * config.head_size for each in names for part in "kv"}
    outs = net.linear(fused, widths, "context projections", kept=True)
    angles = rotation(net, *inverse_frequencies(config))
    for each, key in zip(names, outs[::2], strict=True):
        net.do(TurnOp(each("attn_k_norm.weight"), angles, key))
    return ContextNetwork(net, features, tuple(zip(outs[::2], outs[1::2], strict=True)))
