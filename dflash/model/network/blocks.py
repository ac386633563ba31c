"""The blocks of networks. Each function reads top to bottom as its formula and returns its output."""

from collections.abc import Callable
from typing import NamedTuple

from dflash.model.config import Config
from dflash.model.gguf.architectures import BIASES
from dflash.model.layer_sizes import LayerSizes
from dflash.model.network import ops
from dflash.model.network.ops import Angles, Buffer
from dflash.model.network.program import Names, Program


class BlockInputs(NamedTuple):
    """Inputs of all blocks.

    stream: residual stream, to which blocks add.
    angles, window_angles: rotation in layers without and with a window; None if there are no such layers.
    per_layer: embeddings of the tokens for all layers, in some models.
    """

    stream: Buffer
    angles: Angles | None
    window_angles: Angles | None = None
    per_layer: Buffer | None = None


def block(net: Program, names: Names, config: Config, inputs: BlockInputs) -> None:
    """Norm, mix, add; norm, feed forward, add. In some architectures both outputs have a norm, too."""
    x, blocks = inputs.stream, config.blocks
    net.begin()
    mix = delta_net if config.recurrent[names.layer] else attention
    mixed = mix(net, names, config, inputs, net.norm(x, names("attn_norm.weight")))
    if blocks.normed_outputs:
        mixed = net.norm(mixed, names("post_attention_norm.weight"), out=mixed)
    net.add(x, mixed)
    feed_forward = next(each for tensor, each in reversed(FEED_FORWARDS.items()) if names.has(tensor))
    made = feed_forward(net, names, config, net.norm(x, names(blocks.ffn_norm)))
    if blocks.normed_outputs:
        if config.experts:
            add_experts(net, names, config, x, made)
        made = net.norm(made, names("post_ffw_norm.weight"), out=made)
    net.add(x, made)
    if inputs.per_layer is not None:
        net.add(x, per_layer_part(net, names, config.per_layer, x, inputs.per_layer))
    if names.has("layer_output_scale.weight"):
        net.do(ops.ScaleOp(names("layer_output_scale.weight"), x))
    net.do(ops.CaptureOp(names.layer, x))


def layer_sizes(config: Config, layer: int) -> LayerSizes:
    """Return the sizes of a layer."""
    usual = LayerSizes(config.heads, config.kv_heads, config.head_size, 0, layer, config.ffn)
    return config.layers[layer] if config.layers else usual


def delta_net(net: Program, names: Names, config: Config, _: BlockInputs, x: Buffer) -> Buffer:
    """Gated DeltaNet: a convolution, then a recurrent state that each token decays, corrects and reads."""
    size, heads, layer = config.delta_size, config.delta_value_heads, names.layer
    widths = {
        "attn_qkv.weight": (2 * config.delta_key_heads + heads) * size,
        "attn_gate.weight": heads * size,
        "ssm_alpha.weight": heads,
        "ssm_beta.weight": heads,
    }
    mixed, gate, alpha, beta = net.linear(x, {names(name): n for name, n in widths.items()}, "projections")
    convolved, read = Buffer("convolved", mixed.shape), Buffer("read", (heads, size))
    net.do(ops.ConvOp(mixed, names("ssm_conv1d.weight"), layer, convolved))
    net.do(ops.DeltaOp(convolved, alpha, beta, names("ssm_a"), names("ssm_dt.bias"), layer, read))
    net.do(ops.GatedNormOp(read, gate, names("ssm_norm.weight"), normed := Buffer("heads", gate.shape)))
    return net.product(normed, names("ssm_out.weight"), config.width, "mixer output")


def attention(
    net: Program, names: Names, config: Config, inputs: BlockInputs, x: Buffer, *, append_only: bool = False
) -> Buffer:
    """Softmax attention over the sequence, or over the last tokens in a layer with a window.

    With `append_only`, only keys and values are computed and appended to the cache.

    A layer without keys of its own reads the cache of another one; without `attn_v`, values are the keys before their norm.
    The output has a gate in some architectures: a sigmoid from the query projection, or the softplus of `attn_gate`.
    """
    sizes, blocks = layer_sizes(config, names.layer), config.blocks
    heads, keys = sizes.heads * sizes.head_size, sizes.kv_heads * sizes.head_size
    widths = {"attn_q.weight": 2 * heads if blocks.gated else heads, "attn_k.weight": keys, "attn_v.weight": keys}
    widths |= {"attn_gate.weight": sizes.gate} if sizes.gate else {}
    present = [name for name in widths if not config.layers or names.has(name)][append_only:]
    projected = net.linear(x, {names(name): widths[name] for name in present}, "projections")
    of = dict(zip(present, projected, strict=True))
    query = of.get("attn_q.weight") or Buffer("query", (widths["attn_q.weight"],))  # never written with `append_only`
    key, value = of.get("attn_k.weight"), of.get("attn_v.weight")
    if key is not None and value is None:
        net.do(ops.CopyOp((key,), value := Buffer("value", key.shape)))
    if value is not None and blocks.unscaled:
        net.norm(value, None, size=sizes.head_size, out=value)
    normed = "attn_q_norm.weight" in blocks.full
    q_norm, k_norm = (
        names(f"attn_{part}_norm.weight") if normed and of_part is not None else None
        for part, of_part in (("q", query), ("k", key))
    )
    # scores are divided by the root of the head size; where they should not be, queries are larger by it
    scale = sizes.head_size**0.5 if blocks.unscaled else 1.0
    bias = tuple(names(name) for name in BIASES if name in blocks.full)
    angles = inputs.window_angles if sizes.window else inputs.angles
    assert angles is not None, "there are angles for every layer of attention"
    rotated, attended = Buffer("rotated", (sizes.heads, sizes.head_size)), Buffer("attended", (heads,))
    net.do(ops.RotateOp(query, key, value, (q_norm, k_norm), scale, bias, angles, sizes.source, rotated))
    if append_only:
        return attended
    net.do(ops.AttendOp(rotated, sizes.source, sizes.window, query if blocks.gated else None, attended))
    if sizes.gate:
        net.do(ops.HeadGateOp(of["attn_gate.weight"], attended))
    return net.product(attended, names("attn_output.weight"), config.width, "mixer output")


def gated_feed_forward(net: Program, names: Names, x: Buffer, size: int, *, gelu: bool = False) -> Buffer:
    """``down(silu(gate x) * up x)``, or with GELU."""
    inner = net.gated(x, names("ffn_gate.weight"), names("ffn_up.weight"), size, gelu=gelu)
    return net.product(inner, names("ffn_down.weight"), x.width, "ffn down")


def dense(net: Program, names: Names, config: Config, x: Buffer) -> Buffer:
    """The feed forward of all tokens."""
    return gated_feed_forward(net, names, x, layer_sizes(config, names.layer).ffn, gelu=config.blocks.gelu)


def experts(net: Program, names: Names, _: Config, x: Buffer) -> Buffer:
    """Experts that a router selects for each token, and in some models a shared one."""
    net.do(ops.ExpertsOp(x, x, names.prefix, None, False, out := Buffer("expert_out", x.shape)))
    return out


FeedForward = Callable[[Program, Names, Config, Buffer], Buffer]

FEED_FORWARDS: dict[str, FeedForward] = {"ffn_gate_inp.weight": experts, "ffn_gate.weight": dense}
"""The feed forward of a block by a tensor that it has; the last one counts: a new part may have `ffn_gate`, too."""


def add_experts(net: Program, names: Names, config: Config, x: Buffer, made: Buffer) -> None:
    """Experts beside the feed forward, whose normed output is added to that of the feed forward.

    ``made = rms(made) + rms(sum_e p_e f_e expert_e(rms(x)))`` with ``p = softmax(router (scale rms(x) / sqrt(D)))`` of the
    selected experts, normalised to a sum of 1.
    """
    net.norm(made, names("post_ffw_norm_1.weight"), out=made)
    router_x = net.norm(x, names("ffn_gate_inp.scale"), scale=config.width**-0.5)
    normed, out = net.norm(x, names("pre_ffw_norm_2.weight")), Buffer("expert_out", x.shape)
    factors = names("ffn_down_exps.scale")
    net.do(ops.ExpertsOp(normed, router_x, names.prefix, factors, config.blocks.gelu, out))
    net.add(made, net.norm(out, names("post_ffw_norm_2.weight"), out=out))


def per_layer_part(net: Program, names: Names, size: int, x: Buffer, per_layer: Buffer) -> Buffer:
    """Return one layer's part of the tokens' embeddings: ``rms(proj (gelu(inp_gate x) * part))``."""
    gate = net.product(x, names("inp_gate.weight"), size, "per-layer gate")
    net.do(ops.GeluGateOp(gate, per_layer, names.layer * size, inner := Buffer("layer_inner", gate.shape)))
    out = net.product(inner, names("proj.weight"), x.width, "per-layer output")
    return net.norm(out, names("post_norm.weight"), out=out)
