"""Models on the CPU that are split over several devices which are only labels: the plans of a split, run without a GPU."""

from contextlib import nullcontext

import numpy as np

from dflash.kernels import conv, delta
from dflash.kernels.attention import attend
from dflash.kernels.conv import causal_conv
from dflash.kernels.delta import gated_delta
from dflash.kernels.linear import gated_linear, linear
from dflash.kernels.norm import gated_rms_norm, rms_norm
from dflash.kernels.ragged import PENDING
from dflash.kernels.rope import rotate
from dflash.model.gguf.architectures import BIASES
from dflash.model.loading.settings import LoadSettings
from dflash.model.model import Model
from dflash.model.network.blocks import experts
from dflash.model.network.buffers import lifetimes
from dflash.model.network.ops import Buffer, CaptureOp, Op
from dflash.model.network.program import Names, Program
from dflash.model.network.target import blocks, last_norm, start
from dflash.model.run.cpu import Host, bind
from dflash.model.run.joined import HostPass
from dflash.model.run.memory import Memory
from dflash.model.split.plan import plan_split
from dflash.model.split.pools import SplitPools
from dflash.model.split.shards import Shard, ShardWeights, value_groups
from dflash.model.weights import Weights


def plan_of(file, config, kind, n, *, free=1 << 40, pages=24, sequences=11):
    """The plan of a file for `n` devices of equal memory, or with `free` bytes each; with that many pages."""
    tensors = Weights(file, config).tensors
    sizes = free if isinstance(free, list) else [free] * n
    made = plan_split(
        config,
        tensors,
        LoadSettings(split=kind, devices=range(n), sequences=sequences),
        names=[f"cuda:{i}" for i in range(n)],
        free=sizes,
        work=lambda _: 0,
    )
    return made if pages is None else type(made)(made.kind, made.devices, pages, made.context)


class SplitModel(Model):
    """A model over `n` labels, with the pools and plan of a split; a subclass says how its layers run."""

    def __init__(self, file, config, kind, n, *, kv="f16", threads=1, pages=24, slots=12):
        self.plan = plan_of(file, config, kind, n, pages=pages)
        super().__init__(file, config, pages=1, slots=1, kv=kv, threads=threads)
        self.pools = SplitPools(self.plan, [nullcontext()] * n, slots=slots, kv=kv)
        self._few_rows = 0  # these layers run op by op
        self._run, self._hidden = self._split_run()

    def _flush(self, slot, accepted, buffer):
        one, rows = np.array([[slot], [len(accepted)], [buffer]], np.int32), np.zeros((1, PENDING), np.int32)
        rows[0, : len(accepted)] = accepted
        for part in self.pools.parts:
            for memory in part.conv:
                conv.apply_accepted(one[0], rows, one[1], one[2], memory)
            for memory in part.delta:
                delta.apply_accepted(one[0], rows, one[1], one[2], memory)


class LayerSplitModel(SplitModel):
    """Consecutive layers on each label, with arrays of their own; what they read is copied from the label before."""

    def __init__(self, file, config, n, **settings):
        super().__init__(file, config, "layer", n, **settings)

    def _split_run(self):
        first, last = Program(), Program()
        inputs = start(first, self.config, self.weights, kept=True)
        hidden = last_norm(last, inputs, "output_norm.weight")
        programs, memories = [first], [None]
        for part, pools in zip(self.plan.devices, self.pools.parts, strict=True):
            programs.append(Program())
            blocks(programs[-1], self.config, self.weights, inputs, part.layers)
            memories.append(Memory.of(self.config, pools, part.layers))
        about = {"n_rows": self.max_rows, "eps": self.config.norm_eps, "experts": self.config}
        programs, memories = [*programs, last], [*memories, None]
        hosts = [Host(net, self.weights, memory, **about) for net, memory in zip(programs, memories, strict=True)]
        shared = {inputs.stream, *(inputs.angles or ())}
        parts = [
            (host, HostPass(net, host), shared & lifetimes(net.ops).keys())
            for net, host in zip(programs, hosts, strict=True)
        ]

        def run(batch, n, capture):
            seen, captured = {}, {}
            for host, run_part, buffers in parts:
                for buffer in buffers & seen.keys():
                    host[buffer][:n] = seen[buffer][:n]
                captured |= run_part(batch, n, capture)
                seen |= {buffer: host[buffer] for buffer in buffers}
            return captured

        return run, hosts[-1][hidden]


class TensorSplitModel(SplitModel):
    """A part of every layer on each label; what a matrix multiplies with is gathered from all labels first."""

    def __init__(self, file, config, n, **settings):
        super().__init__(file, config, "tensor", n, **settings)

    def _split_run(self):
        config, n = self.config, len(self.plan.devices)
        shards = [Shard(rank, n) for rank in range(n)]
        weights = [ShardWeights(self.weights, config, shard) for shard in shards]
        memories = [Memory.of(config, part) for part in self.pools.parts]
        net = Program()
        inputs = start(net, config, self.weights)
        for i, recurrent in enumerate(config.recurrent):
            own = [each.block(i) for each in weights]
            of_layer = [(each.conv[i], each.delta[i]) if recurrent else each.caches[i] for each in memories]
            part = self.plan.devices[0].config
            gathered = _Gathered(config, part, own, shards, of_layer, self.weights.block(i), recurrent)
            net.do(GatheredBlock(gathered, inputs.angles, inputs.stream))
            if config.experts:  # every label has all experts
                names = Names(i, f"blk.{i}.", self.weights)
                net.add(inputs.stream, experts(net, names, config, net.norm(inputs.stream, names(config.blocks.ffn_norm))))
            net.do(CaptureOp(i, inputs.stream))
        hidden = last_norm(net, inputs, "output_norm.weight")
        host = Host(net, self.weights, None, self.max_rows, eps=config.norm_eps, experts=config)
        return HostPass(net, host), host[hidden]


class GatheredBlock(Op):
    """A `_Gathered` block: an op that the package does not know."""

    block: object
    angles: tuple
    out: Buffer


@bind.register
def _(op: GatheredBlock, host):
    arrays = [host[each] for each in (op.out, *op.angles)]
    return lambda batch, n: op.block(batch.rows, n, *(array[:n] for array in arrays))


class _Gathered:
    """A block whose parts are computed one label after the other, from gathered inputs."""

    def __init__(self, config, part, weights, shards, memories, whole, recurrent):
        self.config, self.part, self.weights, self.shards = config, part, weights, shards
        self.memories, self.whole, self.recurrent = memories, whole, recurrent

    def __call__(self, rows, n, stream, *angles):
        config = self.config
        normed = np.empty_like(stream)
        rms_norm(stream, self.whole.vector("attn_norm.weight"), config.norm_eps, out=normed)
        heads = self._gather(n, [self._mix(*each, normed, rows, angles) for each in self._each()], self._of_heads())
        self._add("ssm_out.weight" if self.recurrent else "attn_output.weight", heads, stream)
        if config.experts:
            return
        rms_norm(stream, self.whole.vector(config.blocks.ffn_norm), config.norm_eps, out=normed)
        inner = []
        for weights, _, _ in self._each():
            inner.append(np.empty((n, self.part.ffn), np.float32))
            gated_linear(normed, weights.matrix("ffn_gate.weight"), weights.matrix("ffn_up.weight"), inner[-1])
        self._add("ffn_down.weight", self._gather(n, inner, {"n": config.ffn}), stream)

    def _each(self):
        return zip(self.weights, self.shards, self.memories, strict=True)

    def _of_heads(self):
        config = self.config
        if not self.recurrent:
            return {"n": config.heads * config.head_size}
        return {"n": config.delta_value_heads * config.delta_size, "groups": value_groups(config)}

    def _gather(self, n, parts, about):
        whole = np.full((n, about["n"]), np.nan, np.float32)
        for shard, part in zip(self.shards, parts, strict=True):
            at = 0
            for columns in shard.columns(**about).ranges:
                size = columns.stop - columns.start
                whole[:, columns] = part[:, at : at + size]
                at += size
        return whole

    def _add(self, name, x, stream):
        for weights, shard, _ in self._each():
            for columns in shard.columns(stream.shape[1]).ranges:
                linear(x, [weights.matrix(name)], [stream[:, columns]], add=True)

    def _mix(self, weights, shard, memory, normed, rows, angles):
        n, part = len(normed), self.part
        if not self.recurrent:
            gated = 2 if part.blocks.gated else 1
            sizes = gated * part.heads * part.head_size, *(part.kv_heads * part.head_size,) * 2
            query, key, value = outs = [np.empty((n, size), np.float32) for size in sizes]
            linear(normed, [weights.matrix(f"attn_{each}.weight") for each in "qkv"], outs)
            q, out = np.empty((n, part.heads, part.head_size), np.float32), np.empty((n, sizes[0] // gated), np.float32)
            full, vector = part.blocks.full, weights.vector
            gains = [vector(name) if name in full else None for name in ("attn_q_norm.weight", "attn_k_norm.weight")]
            bias = np.concatenate([vector(name) for name in BIASES]) if BIASES.keys() <= full.keys() else None
            k, v = memory
            rotate(query, key, value, *gains, *angles, rows, eps=part.norm_eps, q=q, k=k, v=v, bias=bias)
            attend(q, k, v, rows, out=out, gate=query if gated == 2 else None)
            return out
        size, heads = part.delta_size, part.delta_value_heads
        widths = (2 * part.delta_key_heads + heads) * size, heads * size, heads, heads
        mixed, gate, alpha, beta = outs = [np.empty((n, width), np.float32) for width in widths]
        names = "attn_qkv.weight", "attn_gate.weight", "ssm_alpha.weight", "ssm_beta.weight"
        linear(normed, [weights.matrix(name) for name in names], outs)
        convolved, read = np.empty_like(mixed), np.empty((n, heads, size), np.float32)
        causal_conv(mixed, conv.taps(weights.vector("ssm_conv1d.weight")), rows, memory[0], out=convolved)
        decay = weights.vector("ssm_a"), weights.vector("ssm_dt.bias")
        gated_delta(convolved, alpha, beta, *decay, rows, memory[1], out=read)
        out = np.empty((n, heads * size), np.float32)
        gated_rms_norm(read, gate, weights.vector("ssm_norm.weight"), part.norm_eps, out=out)
        return out
