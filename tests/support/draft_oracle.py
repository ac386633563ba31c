"""Draft models in float64, written from their mathematics: no ring, no batch, every key anew."""

import numpy as np


def rms(x, weight, eps):
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * weight


def rope(x, positions, base):
    """Heads (N, heads, d); number i is paired with i + d / 2."""
    half = x.shape[-1] // 2
    frequencies = base ** (-np.arange(half) / half)
    angle = (np.asarray(positions)[:, None] * frequencies)[:, None]
    left, right = x[..., :half], x[..., half:]
    return np.concatenate([left * np.cos(angle) - right * np.sin(angle), right * np.cos(angle) + left * np.sin(angle)], -1)


def silu(x):
    return x / (1 + np.exp(-x))


def log_softmax(x):
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


class Oracle:
    """One text: `read` features of positions in order, then ask for a `block`."""

    def __init__(self, config, weights, embedding, head, *, begin=0, keeps=None):
        self.c = config
        self.w = {name: np.asarray(value, np.float64) for name, value in weights.items()}
        self.embedding, self.head = np.asarray(embedding, np.float64), np.asarray(head, np.float64)
        self.fused, self.begin, self.keeps = np.zeros((0, config.width)), begin, keeps

    def read(self, features):
        """`features` (N, taps * H) of the next positions."""
        fused = rms(
            np.asarray(features, np.float64) @ self.w["fc.weight"].T, self.w["enc.output_norm.weight"], self.c.norm_eps
        )
        self.fused = np.concatenate([self.fused, fused])

    def heads(self, layer, x, part, positions):
        w, n = self.w[f"blk.{layer}.attn_{part}.weight"], len(x)
        y = (x @ w.T).reshape(n, len(w) // self.c.head_size, self.c.head_size)
        if part == "v":
            return y
        return rope(rms(y, self.w[f"blk.{layer}.attn_{part}_norm.weight"], self.c.norm_eps), positions, self.c.rope_base)

    def attention(self, layer, x):
        c, n, length = self.c, len(x), self.begin + len(self.fused)
        rows, context = length + np.arange(n), self.begin + np.arange(len(self.fused))
        q = self.heads(layer, x, "q", rows)
        keys, values = (
            np.concatenate([self.heads(layer, self.fused, part, context), self.heads(layer, x, part, rows)]) for part in "kv"
        )
        where = np.concatenate([context, rows])
        out = np.zeros((n, c.heads, c.head_size))
        for i in range(n):
            sees = np.ones(len(where), bool)
            if self.keeps is not None:
                sees &= where >= length - self.keeps
            if c.windows[layer]:
                sees &= abs(where - rows[i]) < c.windows[layer]
            if c.causal[layer]:
                sees &= where <= rows[i]
            for h in range(c.heads):
                of = h // (c.heads // c.kv_heads)
                score = keys[sees, of] @ q[i, h] / np.sqrt(c.head_size)
                weight = np.exp(score - score.max())
                out[i, h] = weight / weight.sum() @ values[sees, of]
        return out.reshape(n, -1) @ self.w[f"blk.{layer}.attn_output.weight"].T

    def ffn(self, layer, x):
        gate, up, down = (self.w[f"blk.{layer}.ffn_{part}.weight"] for part in ("gate", "up", "down"))
        return (silu(x @ gate.T) * (x @ up.T)) @ down.T

    def conv(self, layer, part, side, x, change):
        c, out = self.c, np.zeros_like(x)
        base = self.w[f"blk.{layer}.{part}_conv_base"]
        change = change.reshape(len(x), 2, c.conv_width, -1)
        for i in range(len(x)):
            for t in range(c.conv_width):
                if i - t >= 0:
                    out[i] += (base[side, t] + np.repeat(change[i, side, t], c.conv_group)) * x[i - t]
        return out

    def sublayer(self, layer, part, u):
        c = self.c
        x = rms(u, self.w[f"blk.{layer}.{part}_norm.weight"], c.norm_eps)
        run = self.attention if part == "attn" else self.ffn
        if not c.conv_width:
            return run(layer, x)
        change = x @ self.w[f"blk.{layer}.{part}_conv_proj.weight"].T
        return self.conv(layer, part, 1, run(layer, self.conv(layer, part, 0, x, change)), change)

    def block(self, anchor, rows):
        """Return hidden rows after the last norm (rows, H) and logits, also of rows without draft tokens."""
        c = self.c
        u = self.embedding[[anchor] + [c.mask] * (rows - 1)] * c.embed_scale
        for layer in range(c.n_layers):
            u = u + self.sublayer(layer, "attn", u)
            u = u + self.sublayer(layer, "ffn", u)
        z = rms(u, self.w["output_norm.weight"], c.norm_eps)
        logits = c.logit_scale * (z @ self.head.T)
        return z, c.logit_cap * np.tanh(logits / c.logit_cap) if c.logit_cap else logits

    def select(self, anchor, rows):
        """DFlash 2: the greedy walk, tokens and the scores of the candidates at each step."""
        c = self.c
        z, logits = self.block(anchor, rows)
        before, tokens, scores = anchor, [], []
        for t in range(1, rows):
            ids = np.argsort(-logits[t], kind="stable")[: c.selector_top]
            gate = self.w["selector_hidden.weight"] @ z[t]
            pair = self.w["selector_predecessor.weight"][before] * gate @ self.w["selector_successor.weight"][ids].T
            score = logits[t, ids] + pair
            before = int(ids[score.argmax()])
            tokens.append(before)
            scores.append(dict(zip(ids.tolist(), log_softmax(score).tolist(), strict=True)))
        return tokens, scores

    def walk(self, anchor, rows, targets=None):
        """DSpark: the greedy walk, log-probabilities of each step over the draft's tokens, and confidences."""
        c = self.c
        z, logits = self.block(anchor, rows)
        before, tokens, steps, trust = anchor, [], [], []
        for t in range(0 if c.from_anchor else 1, rows):
            code = self.w["markov_w1.weight"][before]
            row = logits[t] + self.w["markov_w2.weight"] @ code
            own = int(row.argmax())
            before = own if targets is None else int(targets[own])
            tokens.append(before)
            steps.append(log_softmax(row))
            if c.has_confidence:
                x = self.w["conf_proj.weight"].reshape(-1) @ np.concatenate([z[t], code]) + self.w["conf_proj.bias"][0]
                trust.append(1 / (1 + np.exp(-x)))
        return tokens, steps, trust
