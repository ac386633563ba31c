"""Models on the CPU that are split over several devices which are only labels: the plans of a split, run without a GPU."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np

from dflash.kernels import conv, delta
from dflash.kernels.attention import attend
from dflash.kernels.conv import causal_conv
from dflash.kernels.delta import gated_delta
from dflash.kernels.linear import gated_linear, linear
from dflash.kernels.norm import gated_rms_norm, rms_norm
from dflash.kernels.ragged import PENDING
from dflash.kernels.rope import rotate
from dflash.model.layers import Block, FullAttention, LinearAttention
from dflash.model.loading.settings import LoadSettings
from dflash.model.model import Model
from dflash.model.split.plan import plan_split
from dflash.model.split.pools import SplitPools
from dflash.model.split.shards import Shard, ShardWeights, value_groups
from dflash.model.weights import Weights, attention_bias, head_norms
from dflash.model.workspace import ModelWorkspace


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
        self._blocks = self._split_blocks(self._space)
        self._few.most = 0  # these blocks run op by op

    def _build_blocks(self, space):
        return []

    def _flush(self, slot, accepted, buffer):
        one, rows = np.array([[slot], [len(accepted)], [buffer]], np.int32), np.zeros((1, PENDING), np.int32)
        rows[0, : len(accepted)] = accepted
        for part in self.pools.parts:
            for memory in part.conv:
                conv.apply_accepted(one[0], rows, one[1], one[2], memory)
            for memory in part.delta:
                delta.apply_accepted(one[0], rows, one[1], one[2], memory)


class LayerSplitModel(SplitModel):
    """Consecutive layers on each label, with arrays of their own; the residual stream is copied between them."""

    def __init__(self, file, config, n, **settings):
        super().__init__(file, config, "layer", n, **settings)

    def _split_blocks(self, home):
        blocks = []
        for part, pools in zip(self.plan.devices, self.pools.parts, strict=True):
            space = ModelWorkspace(self.config, self.max_rows)
            seen = SimpleNamespace(linear=0, full=0)
            scratch = []
            for i in part.layers:
                weights = self.weights.block(i)
                if self.config.recurrent[i]:
                    mixer = LinearAttention(weights, self.config, space, pools.conv[seen.linear], pools.delta[seen.linear])
                    seen.linear += 1
                else:
                    mixer = FullAttention(weights, self.config, space, pools.k[seen.full], pools.v[seen.full])
                    seen.full += 1
                blocks.append(_Moved(home, space, Block(weights, self.config, space, mixer, scratch)))
        return blocks


class _Moved:
    """A block that runs in the arrays of its label."""

    def __init__(self, home, space, block):
        self.home, self.space, self.block = home, space, block

    def __call__(self, rows, n):
        home, space = self.home.first(n), self.space.first(n)
        for name in ("stream", "cos", "sin"):
            getattr(space, name)[:] = getattr(home, name)
        self.block(rows, n)
        home.stream[:] = space.stream


class TensorSplitModel(SplitModel):
    """A part of every layer on each label; what a matrix multiplies with is gathered from all labels first."""

    def __init__(self, file, config, n, **settings):
        super().__init__(file, config, "tensor", n, **settings)

    def _split_blocks(self, home):
        shards = [Shard(rank, self.plan.devices.__len__()) for rank in range(len(self.plan.devices))]
        weights = [ShardWeights(self.weights, self.config, shard) for shard in shards]
        blocks, linear_layers, full_layers = [], 0, 0
        for i, recurrent in enumerate(self.config.recurrent):
            own = [each.block(i) for each in weights]
            if recurrent:
                memories = [(part.conv[linear_layers], part.delta[linear_layers]) for part in self.pools.parts]
                linear_layers += 1
            else:
                memories = [(part.k[full_layers], part.v[full_layers]) for part in self.pools.parts]
                full_layers += 1
            config = self.plan.devices[0].config
            blocks.append(_Gathered(self.config, config, home, own, shards, memories, self.weights.block(i), recurrent))
        return blocks


class _Gathered:
    """A block whose parts are computed one label after the other, from gathered inputs."""

    def __init__(self, config, part, home, weights, shards, memories, whole, recurrent):
        self.config, self.part, self.home, self.weights, self.shards = config, part, home, weights, shards
        self.memories, self.whole, self.recurrent = memories, whole, recurrent
        self.experts = None
        if config.experts:  # every label has all experts: the block of one device
            space = ModelWorkspace(config, home.n_rows)
            mixer = lambda rows, n: None  # noqa: E731
            self.experts = space, Block(whole, config, space, mixer, [])

    def __call__(self, rows, n):
        s, config = self.home.first(n), self.config
        normed = np.empty_like(s.normed)
        rms_norm(s.stream, self.whole.vector("attn_norm.weight"), config.norm_eps, out=normed)
        heads = self._gather(n, [self._mix(*each, normed, rows) for each in self._each()], self._of_heads())
        self._add("ssm_out.weight" if self.recurrent else "attn_output.weight", heads, s.stream)
        if self.experts:
            space, block = self.experts
            space.first(n).stream[:] = s.stream
            block(rows, n)
            s.stream[:] = space.first(n).stream
            return
        rms_norm(s.stream, self.whole.vector(config.blocks.ffn_norm), config.norm_eps, out=normed)
        inner = []
        for weights, _, _ in self._each():
            inner.append(np.empty((n, self.part.ffn), np.float32))
            gated_linear(normed, weights.matrix("ffn_gate.weight"), weights.matrix("ffn_up.weight"), inner[-1])
        self._add("ffn_down.weight", self._gather(n, inner, {"n": config.ffn}), s.stream)

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

    def _mix(self, weights, shard, memory, normed, rows):
        n, part = len(normed), self.part
        if not self.recurrent:
            s = self.home.first(n)
            gated = 2 if part.blocks.gated else 1
            sizes = gated * part.heads * part.head_size, *(part.kv_heads * part.head_size,) * 2
            query, key, value = outs = [np.empty((n, size), np.float32) for size in sizes]
            names = "attn_q.weight", "attn_k.weight", "attn_v.weight"
            linear(normed, weights.matrices(*names, fused="attn_qkv.weight", rows=sizes), outs)
            q, out = np.empty((n, part.heads, part.head_size), np.float32), np.empty((n, sizes[0] // gated), np.float32)
            gains, bias = head_norms(weights, part), attention_bias(weights, part)
            k, v = memory
            rotate(query, key, value, *gains, s.cos, s.sin, rows, eps=part.norm_eps, q=q, k=k, v=v, bias=bias)
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
