"""EAGLE-3 heads as programs."""

from dflash.model.config import Config
from dflash.model.eagle.config import EagleConfig
from dflash.model.network.blocks import BlockInputs, attention, dense
from dflash.model.network.heads import HeadNetwork, normed_pair
from dflash.model.network.ops import Buffer, CopyOp
from dflash.model.network.program import Names, Program
from dflash.model.network.target import last_norm, rotation
from dflash.model.rope import inverse_frequencies


def eagle(head: EagleConfig, config: Config, *, drafts: bool) -> HeadNetwork:
    """Attention over rows of twice the width, then a feed forward; `config` has the sizes of the layer.

    ``a = attention [rms(embedding); rms(given)]``, ``x = given + a`` or ``x = rms(given) + a``, then
    ``x = x + feed_forward(rms(x))``. Without `drafts` as `mtp`.
    """
    net, names, given = Program(), Names(0, "blk.0.", ()), Buffer("given", (config.width,), kept=True)
    halves = normed_pair(net, given, "token_embd.weight", names("attn_norm.weight"), names("hidden_norm.weight"))
    x = halves[1] if head.normed_residual else given
    inputs = BlockInputs(x, rotation(net, *inverse_frequencies(config)))
    net.begin()
    net.do(CopyOp(halves, pair := Buffer("pair", (2 * config.width,))))
    mixed = attention(net, names, config, inputs, pair, append_only=not drafts)
    if not drafts:
        net.begin()
        return HeadNetwork(net, given, given, given)
    net.add(x, mixed)
    net.add(x, dense(net, names, config, net.norm(x, names("ffn_norm.weight"))))
    normed = last_norm(net, inputs, "output_norm.weight")
    return HeadNetwork(net, given, normed, normed if head.normed_output else x)


def eagle_features(head: EagleConfig) -> tuple[Program, tuple[Buffer, ...], Buffer]:
    """Return the network of ``fc features``, its input for each layer of the target, and its output.

    Before `fc`, each layer's features have a norm, or all features together, or there is none.
    """
    net, n = Program(), len(head.target_layer_ids)
    given = tuple(Buffer("features", (head.target_width,), kept=True) for _ in range(n))
    if head.feature_norm == "layers":
        for i, each in enumerate(given):
            net.norm(each, f"fc_norm.{i}.weight", out=each)
    net.do(CopyOp(given, features := Buffer("features", (n * head.target_width,))))
    if head.feature_norm == "whole":
        net.norm(features, "input_norm.weight", out=features)
    (fused,) = net.linear(features, {"fc.weight": head.width}, "eagle features", kept=True)
    return net, given, fused
