"""An architecture with a new part: a feed forward of squared ReLU with a second norm."""

import model_definition
import numpy as np

from dflash.model.gguf import architectures
from dflash.model.network import blocks
from dflash.model.network.ops import Buffer
from squared_relu import SquaredReluOp

FFN = {"ffn_norm.weight": "H", "ffn_up.weight": "F H", "ffn_sub_norm.weight": "F", "ffn_down.weight": "H F"}


def squared_feed_forward(net, names, config, x):
    """``down(rms(relu(up x) ** 2))``."""
    inner = net.product(x, names("ffn_up.weight"), config.ffn, "ffn up")
    net.do(SquaredReluOp(inner, squared := Buffer("squared", inner.shape)))
    normed = net.norm(squared, names("ffn_sub_norm.weight"), name="squared_normed")
    return net.product(normed, names("ffn_down.weight"), config.width, "ffn down")


def definition(block, config, x):
    """`squared_feed_forward` in float64."""
    inner = np.maximum(x @ block("ffn_up.weight").T, 0) ** 2
    return model_definition.norm(inner, block.vector("ffn_sub_norm.weight"), config.norm_eps) @ block("ffn_down.weight").T


def add(monkeypatch):
    """Make ``squared`` an architecture, with attention as Qwen3, in the package and in the definition."""
    entry = architectures.Architecture(linear=None, full=architectures.FULL, ffn=FFN, fused=())
    monkeypatch.setitem(architectures.ARCHITECTURES, "squared", entry)
    monkeypatch.setitem(blocks.FEED_FORWARDS, "ffn_sub_norm.weight", squared_feed_forward)
    monkeypatch.setattr(model_definition, "dense", definition)
