"""Heads that draft token after token as programs."""

from typing import NamedTuple

from dflash.model.config import Config
from dflash.model.network.blocks import BlockInputs, attention, block
from dflash.model.network.ops import Buffer, CopyOp, EmbedOp
from dflash.model.network.program import Names, Program
from dflash.model.network.target import last_norm, rotation
from dflash.model.rope import inverse_frequencies
from dflash.model.weights import TargetTensors


class HeadNetwork(NamedTuple):
    """The network of a head.

    given: input; hidden state of the position before each token.
    normed, hidden: outputs; rows for the LM head, and hidden states, of which the next position reads one.
    """

    program: Program
    given: Buffer
    normed: Buffer
    hidden: Buffer


def mtp(config: Config, tensors: TargetTensors, *, drafts: bool) -> HeadNetwork:
    """``x = eh_proj [rms(embedding(token)); rms(given)]``, then a block of full attention, then a norm.

    Without `drafts`, only keys and values are computed: later tokens need nothing else.
    """
    net, names, given = Program(), Names(0, "", tensors), Buffer("given", (config.width,), kept=True)
    halves = normed_pair(net, given, "nextn.embed_tokens.weight", "nextn.enorm.weight", "nextn.hnorm.weight")
    net.do(CopyOp(halves, pair := Buffer("pair", (2 * config.width,))))
    stream = net.product(pair, "nextn.eh_proj.weight", config.width, "mtp projection")
    inputs = BlockInputs(stream, rotation(net, *inverse_frequencies(config)))
    if drafts:
        block(net, names, config, inputs)
        normed = last_norm(net, inputs, "nextn.shared_head_norm.weight")
        return HeadNetwork(net, given, normed, normed)
    net.begin()
    attention(net, names, config, inputs, net.norm(stream, "attn_norm.weight"), append_only=True)
    net.begin()
    return HeadNetwork(net, given, given, given)


def normed_pair(net: Program, given: Buffer, table: str, norm: str, given_norm: str) -> tuple[Buffer, Buffer]:
    """Return ``rms(embedding(token))`` and ``rms(given)``."""
    net.do(EmbedOp(table, embedded := Buffer("embedded", given.shape)))
    return net.norm(embedded, norm, name="left"), net.norm(given, given_norm, name="right", kept=True)
