"""Target models as programs."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dflash.model.config import Config
from dflash.model.network.blocks import BlockInputs, block
from dflash.model.network.ops import Angles, Buffer, EmbedOp, RotationOp, ScaleOp
from dflash.model.network.program import Names, Program
from dflash.model.rope import inverse_frequencies, model_frequencies
from dflash.model.weights import TargetTensors


class Network(NamedTuple):
    """A program with its inputs and its output."""

    program: Program
    inputs: BlockInputs
    hidden: Buffer


def target(config: Config, tensors: TargetTensors) -> Network:
    """Return the network of a target model, from the tokens to the last norm."""
    net = Program()
    inputs = start(net, config, tensors)
    blocks(net, config, tensors, inputs, range(config.n_layers))
    return Network(net, inputs, last_norm(net, inputs, "output_norm.weight"))


def start(net: Program, config: Config, tensors: TargetTensors, *, kept: bool = False) -> BlockInputs:
    """Embed the tokens and compute the angles of their positions; `kept` if other programs continue with them."""
    stream = Buffer("stream", (config.width,), kept)
    net.do(EmbedOp("token_embd.weight", stream, config.width**0.5 if config.blocks.scaled_embedding else 1.0))
    per_layer = per_layer_embedding(net, config, stream) if config.per_layer else None
    if not config.n_rot:
        return BlockInputs(stream, None)
    angles = rotation(net, *model_frequencies(config, tensors), kept=kept)
    window = config.window_rotation
    of_windows = None if window is None else rotation(net, *inverse_frequencies(window), "window_", kept=kept)
    return BlockInputs(stream, angles, of_windows, per_layer)


def rotation(net: Program, inv_freq: NDArray[np.float32], gain: float, prefix: str = "", *, kept: bool = False) -> Angles:
    """Compute cosines and sines of a rotary embedding."""
    angles = Buffer(f"{prefix}cos", inv_freq.shape, kept), Buffer(f"{prefix}sin", inv_freq.shape, kept)
    net.do(RotationOp(inv_freq, gain, angles))
    return angles


def per_layer_embedding(net: Program, config: Config, x: Buffer) -> Buffer:
    """Return embeddings of the tokens for all layers: of the token itself, and projected from its embedding.

    ``(rms(model_proj x / sqrt(D)) + sqrt(P) token_embd[token]) / sqrt(2)``, with the norm over the P elements of a layer.
    """
    width = config.n_layers * config.per_layer
    out = net.product(x, "per_layer_model_proj.weight", width, "per-layer projection")
    net.do(ScaleOp(config.width**-0.5, out))
    net.norm(out, "per_layer_proj_norm.weight", size=config.per_layer, out=out)
    net.do(EmbedOp("per_layer_token_embd.weight", token := Buffer("token_part", (width,)), config.per_layer**0.5))
    net.add(out, token)
    net.do(ScaleOp(2**-0.5, out))
    return out


def blocks(net: Program, config: Config, tensors: TargetTensors, inputs: BlockInputs, layers: Iterable[int]) -> None:
    """Run some layers."""
    for i in layers:
        block(net, Names(i, f"blk.{i}.", tensors), config, inputs)


def last_norm(net: Program, inputs: BlockInputs, gain: str) -> Buffer:
    """Return the residual stream after the last norm."""
    net.begin()
    return net.norm(inputs.stream, gain, out=Buffer("hidden", inputs.stream.shape, kept=True))
