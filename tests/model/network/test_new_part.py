"""An architecture with a new part takes one function, one op folder and one entry of a table."""

import model_definition
import numpy as np
from compare import assert_close
from squared_relu import SquaredReluOp
from test_random_models import CLOSE, DENSE, KEYS, TOKENS, computed, written

from dflash.model.gguf import architectures
from dflash.model.network import blocks

FFN = {"ffn_norm.weight": "H", "ffn_up.weight": "F H", "ffn_sub_norm.weight": "F", "ffn_down.weight": "H F"}


def squared_feed_forward(net, names, config, x):
    """``down(rms(relu(up x) ** 2))``."""
    inner = net.product(x, names("ffn_up.weight"), config.ffn, "ffn up")
    net.do(SquaredReluOp(inner, inner))
    net.norm(inner, names("ffn_sub_norm.weight"), out=inner)
    return net.product(inner, names("ffn_down.weight"), config.width, "ffn down")


def definition(block, config, x):
    inner = np.maximum(x @ block("ffn_up.weight").T, 0) ** 2
    return model_definition.norm(inner, block.vector("ffn_sub_norm.weight"), config.norm_eps) @ block("ffn_down.weight").T


def test_a_feed_forward_with_squared_relu_and_a_second_norm(tmp_path, monkeypatch):
    entry = architectures.Architecture(linear=None, full=architectures.FULL, ffn=FFN, fused=())
    monkeypatch.setitem(architectures.ARCHITECTURES, "squared", entry)
    monkeypatch.setitem(blocks.FEED_FORWARDS, "ffn_sub_norm.weight", squared_feed_forward)
    monkeypatch.setitem(KEYS, "squared", DENSE)
    monkeypatch.setattr(model_definition, "dense", definition)
    file, config = written(tmp_path / "model.gguf", "squared", "Q8_0", ())
    with file:
        assert_close("logits", computed(file, config, TOKENS), model_definition.logits(file, config, TOKENS), CLOSE)
