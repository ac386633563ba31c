"""Definition of the supported models in float64 NumPy: logits of a text, row by row as the formulas read."""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from dflash.kernels.delta.reference import gates, unit
from dflash.kernels.formats import FORMATS
from dflash.kernels.gelu.reference import gelu
from dflash.kernels.kv_types import mixed, numbers, quantize
from dflash.kernels.linear.reference import rounded
from dflash.kernels.moe import Experts
from dflash.kernels.moe.reference import experts
from dflash.model.rope import inverse_frequencies
from dflash.model.weights import Weights, experts_of


def norm(x, gain, eps):
    """``x / sqrt(mean(x ** 2) + eps) * gain`` over the last axis."""
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * gain


def silu(x):
    return x / (1 + np.exp(-x))


class Rounding(np.ndarray):
    """A matrix that rounds the tokens that it multiplies, as products of whole numbers on a CPU do."""

    def __matmul__(self, tokens):
        return self.view(np.ndarray) @ rounded(tokens)

    def __rmatmul__(self, tokens):
        return rounded(tokens) @ self.view(np.ndarray)


@dataclass(frozen=True)
class Unpacked:
    """Weights of a block as float64 arrays; `record` puts values into `trace`."""

    weights: Any
    rounding: bool = False
    margins: list = field(default_factory=list)
    trace: dict = field(default_factory=dict)
    prefix: str = ""

    def block(self, i):
        return replace(self, weights=self.weights.block(i), prefix=f"layer{i}.")

    def record(self, **values):
        self.trace.update({self.prefix + name: value for name, value in values.items()})

    def __call__(self, name):
        matrix = self.weights.matrix(name)
        values = matrix.unpacked().astype(np.float64)
        return values.view(Rounding) if self.rounding and matrix.native and FORMATS[matrix.type].integers else values

    def vector(self, name):
        return self.weights.vector(name).astype(np.float64)

    def matrix(self, name):
        return SimpleNamespace(unpacked=lambda: self(name))

    def rows(self, name, ids):
        """Rows of an embedding, which no token multiplies."""
        return self.weights.matrix(name).unpacked()[ids].astype(np.float64)


def logits(file, config, tokens, *, kv="f32", margins=None, rounding=False, trace=None):
    """Logits (T, V) of a text from its start, with keys and values as a cache of a type stores them in layers that differ.

    With `rounding`, products with formats of whole numbers round tokens to 16 bits, as on a CPU. `margins` receives the
    `margin` of each layer's routers, `trace` each layer's output ``layer0.out``, its keys and values ``.k`` and ``.v``, and
    its state after the last token, ``.ssm`` and ``.conv``.
    """
    margins, trace = [] if margins is None else margins, {} if trace is None else trace
    whole = Unpacked(Weights(file, config), rounding, margins, trace)
    x = whole.rows("token_embd.weight", tokens)
    if config.layers:
        return layered_logits(whole, config, x, tokens, kv)
    table = Table(config, whole if "rope_freqs.weight" in whole.weights else None)
    for i, recurrent in enumerate(config.recurrent):
        block = whole.block(i)
        h = norm(x, block.vector("attn_norm.weight"), config.norm_eps)
        x = x + (linear_attention(block, config, h) if recurrent else full_attention(block, config, h, table))
        h = norm(x, block.vector(config.blocks.ffn_norm), config.norm_eps)
        x = x + (routed if config.experts else dense)(block, config, h)
        block.record(out=x)
    x = norm(x, whole.vector("output_norm.weight"), config.norm_eps)
    return x @ whole("token_embd.weight" if config.tied else "output.weight").T


def layered_logits(whole, config, x, tokens, kv):
    """Logits of a model whose layers differ."""
    eps, kept, parts = config.norm_eps, Cache(kv), None
    x = x * (config.width**0.5 if config.blocks.scaled_embedding else 1)
    if config.per_layer:
        parts = (x @ whole("per_layer_model_proj.weight").T * config.width**-0.5).reshape(len(x), -1, config.per_layer)
        parts = norm(parts, whole.vector("per_layer_proj_norm.weight"), eps)
        own = whole.rows("per_layer_token_embd.weight", tokens).reshape(parts.shape) * config.per_layer**0.5
        parts = (parts + own) * 2**-0.5
    for i in range(config.n_layers):
        block = whole.block(i)
        h = norm(x, block.vector("attn_norm.weight"), eps)
        h = layered_attention(whole, block, config, i, h, kept)
        if not config.blocks.normed_outputs:
            x = x + h
            h = norm(x, block.vector("ffn_norm.weight"), eps)
            x = x + (dense if config.layers[i].ffn else routed)(block, config, h)
            block.record(out=x)
            continue
        x = x + norm(h, block.vector("post_attention_norm.weight"), eps)
        h = norm(x, block.vector("ffn_norm.weight"), eps)
        h = gelu(h @ block("ffn_gate.weight").T) * (h @ block("ffn_up.weight").T) @ block("ffn_down.weight").T
        if config.experts:
            own = norm(experts_beside(block, config, x), block.vector("post_ffw_norm_2.weight"), eps)
            h = norm(h, block.vector("post_ffw_norm_1.weight"), eps) + own
        x = x + norm(h, block.vector("post_ffw_norm.weight"), eps)
        if parts is not None:
            h = gelu(x @ block("inp_gate.weight").T) * parts[:, i] @ block("proj.weight").T
            x = x + norm(h, block.vector("post_norm.weight"), eps)
        if "layer_output_scale.weight" in block.weights:
            x = x * block.vector("layer_output_scale.weight")
        block.record(out=x)
    x = norm(x, whole.vector("output_norm.weight"), eps)
    y = x @ whole("token_embd.weight" if config.tied else "output.weight").T
    return config.logit_cap * np.tanh(y / config.logit_cap) if config.logit_cap else y


def experts_beside(block, config, x):
    """Selected experts of a router that reads another norm of the rows than they do."""
    routed_by = norm(x, block.vector("ffn_gate_inp.scale"), config.norm_eps) * config.width**-0.5
    h = norm(x, block.vector("pre_ffw_norm_2.weight"), config.norm_eps)
    block.margins.append(margin(routed_by @ block("ffn_gate_inp.weight").T, config.experts_used))
    out, weights = np.zeros_like(x), experts_of(block, config, router=block.matrix)
    experts(h, weights, out, router_x=routed_by, factors=block.vector("ffn_down_exps.scale"), gelu=True)
    return out


class Cache(dict):
    """Keys and values of layers, as a cache stores them."""

    def __init__(self, kv):
        self.kv = kv

    def __setitem__(self, layer, keys_and_values):
        keys, values = keys_and_values
        if self.kv in ("q8_0", "q4_0"):
            mix = mixed if self.kv == "q4_0" else np.asarray
            stored = [quantize(x.astype(np.float32), self.kv) for x in (mix(keys), values)]
            keys, values = (numbers(x).astype(np.float64) for x in stored)
            keys = mix(keys)  # back: queries need not be mixed then
        super().__setitem__(layer, (keys, values))


def layered_attention(whole, block, config, i, x, kept):
    """Attention over the last tokens; `kept` holds keys and values, of which some layers read those of another one."""
    n, layer, eps = len(x), config.layers[i], config.norm_eps
    factors = whole if "rope_freqs.weight" in whole.weights and not layer.window else None
    table = Table(config.window_rotation if layer.window else config, factors)
    q = (x @ block("attn_q.weight").T).reshape(n, layer.heads, layer.head_size)
    q = rotated(norm(q, block.vector("attn_q_norm.weight"), eps), table)
    if layer.source == i:
        k = (x @ block("attn_k.weight").T).reshape(n, layer.kv_heads, layer.head_size)
        v = (x @ block("attn_v.weight").T).reshape(k.shape) if "attn_v.weight" in block.weights else k
        k = rotated(norm(k, block.vector("attn_k_norm.weight"), eps), table)
        kept[i] = k, norm(v, 1, eps) if config.blocks.unscaled else v
        block.record(k=k.swapaxes(0, 1), v=kept[i][1].swapaxes(0, 1))
    k, v = (np.repeat(part, layer.heads // layer.kv_heads, axis=1) for part in kept[layer.source])
    scores = np.einsum("thd,shd->hts", q, k) * (1 if config.blocks.unscaled else layer.head_size**-0.5)
    seen = np.tri(n, dtype=bool) & ~np.tri(n, k=-(layer.window or n), dtype=bool)
    scores = np.where(seen, scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    out = np.einsum("hts,shd->thd", p / p.sum(-1, keepdims=True), v)
    if layer.gate:
        opening = np.log1p(np.exp(x @ block("attn_gate.weight").T))
        out = out.reshape(n, layer.gate, -1) * opening[:, :, None]
    return out.reshape(n, -1) @ block("attn_output.weight").T


class Table:
    """Frequencies of a rotation, divided by factors if it has some, and its gain."""

    def __init__(self, rotation, factors=None):
        self.frequencies, self.gain = inverse_frequencies(rotation)
        if factors is not None:
            self.frequencies = self.frequencies / factors.weights.vector("rope_freqs.weight")


def linear_attention(block, config, x):
    """Gated delta rule, token by token."""
    key_heads, heads, size = config.delta_key_heads, config.delta_value_heads, config.delta_size
    mixed, z = x @ block("attn_qkv.weight").T, x @ block("attn_gate.weight").T
    alpha, beta = x @ block("ssm_alpha.weight").T, x @ block("ssm_beta.weight").T
    taps, n = block.vector("ssm_conv1d.weight"), len(x)
    padded = np.concatenate([np.zeros((config.conv_width - 1, mixed.shape[1])), mixed])
    y = silu(sum(taps[:, j] * padded[j : j + n] for j in range(config.conv_width)))
    q, k, v = (part.reshape(n, -1, size) for part in np.split(y, (key_heads * size, 2 * key_heads * size), axis=1))
    q, k = unit(q) * size**-0.5, unit(k)
    log_decay, strength = gates(alpha, beta, block.vector("ssm_a"), block.vector("ssm_dt.bias"))
    owner = np.arange(heads) // (heads // key_heads) if config.blocks.grouped else np.arange(heads) % key_heads
    out, state = np.empty((n, heads, size)), np.zeros((heads, size, size))
    for t in range(n):
        state *= np.exp(log_decay[t])[:, None, None]
        u = strength[t][:, None] * (v[t] - np.einsum("hvk,hk->hv", state, k[t, owner]))
        state += u[:, :, None] * k[t, owner][:, None]
        out[t] = np.einsum("hvk,hk->hv", state, q[t, owner])
    block.record(ssm=state.swapaxes(1, 2), conv=padded[n:].T)
    read = norm(out, block.vector("ssm_norm.weight"), config.norm_eps).reshape(n, -1) * silu(z)
    return read @ block("ssm_out.weight").T


def full_attention(block, config, x, table):
    """Causal softmax attention with rotary positions."""
    n, size, has = len(x), config.head_size, config.blocks.full
    q, k, v = (x @ block(f"attn_{part}.weight").T for part in "qkv")
    if "attn_q.bias" in has:
        q, k, v = (x + block.vector(f"attn_{part}.bias") for x, part in ((q, "q"), (k, "k"), (v, "v")))
    q, k, v = q.reshape(n, config.heads, -1), k.reshape(n, config.kv_heads, size), v.reshape(n, config.kv_heads, size)
    gate = 1 / (1 + np.exp(-q[..., size:])) if config.blocks.gated else 1
    q = q[..., :size]
    if "attn_q_norm.weight" in has:
        q, k = (norm(x, block.vector(f"attn_{part}_norm.weight"), config.norm_eps) for x, part in ((q, "q"), (k, "k")))
    q, k = rotated(q, table), rotated(k, table)
    block.record(k=k.swapaxes(0, 1), v=v.swapaxes(0, 1))
    k, v = (np.repeat(part, config.heads // config.kv_heads, axis=1) for part in (k, v))
    scores = np.einsum("thd,shd->hts", q, k) * size**-0.5
    scores = np.where(np.tri(n, dtype=bool), scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    out = np.einsum("hts,shd->thd", p / p.sum(-1, keepdims=True), v) * gate
    return out.reshape(n, -1) @ block("attn_output.weight").T


def rotated(x, table):
    """Rotate the first dimensions of each head by the position of its row."""
    frequencies, gain = table.frequencies, table.gain
    angles = (np.arange(len(x), dtype=np.float32)[:, None] * frequencies).astype(np.float64)[:, None]
    cos, sin, half = gain * np.cos(angles), gain * np.sin(angles), len(frequencies)
    a, b, rest = np.split(x, (half, 2 * half), axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)


def routed(block, config, x):
    """Experts that a router selects, and the shared one."""
    out, weights = np.zeros_like(x), Experts(*experts_of(block, config, router=block.matrix))
    values = x @ block("ffn_gate_inp.weight").T
    if weights.routing:
        values = 1 / (1 + np.exp(-values)) + weights.routing.bias
    block.margins.append(margin(values, config.experts_used))
    experts(x, weights, out)
    return out


def margin(values, n_used):
    """Least difference between the values of the last selected and the next expert, in their standard deviations."""
    ranked = -np.sort(-values, axis=1)
    return ((ranked[:, n_used - 1] - ranked[:, n_used]) / values.std()).min()


def dense(block, _, x):
    """Gated feed forward."""
    return silu(x @ block("ffn_gate.weight").T) * (x @ block("ffn_up.weight").T) @ block("ffn_down.weight").T
