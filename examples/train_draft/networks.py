"""The networks in torch, with parameters named as in GGUF files; `dflash/model/draft` and `dflash/model/mtp.py` run them."""

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from dflash.model.config import Config
from dflash.model.draft.config import DraftConfig
from dflash.model.eagle import EagleConfig
from dflash.model.rope import inverse_frequencies


def rms(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """Return ``x / rms(x) * gain`` over the last axis."""
    return fn.rms_norm(x.float(), gain.shape, gain, eps)


def rotate(x: Tensor, positions: Tensor, rotation: tuple[Tensor, float]) -> Tensor:
    """Rotate heads (..., T, heads, size) by their positions (..., T), with frequencies and a factor of cosine and sine."""
    frequencies, gain = rotation
    half = len(frequencies)
    angles = positions[..., None, None] * frequencies
    cos, sin = angles.cos() * gain, angles.sin() * gain
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1).to(x.dtype)


def attend(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    """Return softmax attention (S, T, heads * size) of q (S, T, heads, size) over keys that `visible` (S, T, K) admits."""
    k, v = (x.repeat_interleave(q.shape[-2] // x.shape[-2], -2) for x in (k, v))
    q, k, v = (x.transpose(1, 2).to(torch.bfloat16 if x.is_cuda else x.dtype) for x in (q, k, v))
    return fn.scaled_dot_product_attention(q, k, v, attn_mask=visible[:, None]).transpose(1, 2).flatten(2).float()


class Layer(nn.Module):
    """Norm, attention, add; norm, gated feed forward, add.

    Parameters
    ----------
    config : Config or DraftConfig
        The sizes.
    normed : bool
        Whether query and key heads have norms.
    gates : int
        2 if queries bring a gate of each head's output.
    wide : int
        Width of the input of attention, in widths of the stream.
    """

    def __init__(
        self, config: Config | DraftConfig | EagleConfig, *, normed: bool = True, gates: int = 1, wide: int = 1
    ) -> None:
        super().__init__()
        width, ffn, heads, kv_heads, size = config.width, config.ffn, config.heads, config.kv_heads, config.head_size
        self.heads, self.size, self.eps, self.gates = heads, size, config.norm_eps, gates
        self.attn_norm, self.ffn_norm = (nn.Parameter(torch.ones(width)) for _ in range(2))
        self.attn_q_norm, self.attn_k_norm = (nn.Parameter(torch.ones(size)) if normed else None for _ in range(2))
        self.attn_q, self.attn_output = matrix(gates * heads * size, wide * width), matrix(width, heads * size)
        self.attn_k, self.attn_v = matrix(kv_heads * size, wide * width), matrix(kv_heads * size, wide * width)
        self.ffn_gate, self.ffn_up, self.ffn_down = matrix(ffn, width), matrix(ffn, width), matrix(width, ffn)

    def keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys, normed but not rotated, and values of rows (S, T, D)."""
        k, v = (fn.linear(x, w).unflatten(-1, (-1, self.size)) for w in (self.attn_k, self.attn_v))
        return self._normed(k, self.attn_k_norm), v

    def queries(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries, normed but not rotated, and the gates of the heads (empty without)."""
        q = fn.linear(x, self.attn_q).unflatten(-1, (self.heads, self.gates * self.size))
        return self._normed(q[..., : self.size], self.attn_q_norm), q[..., self.size :].flatten(2)

    def attended(self, x: Tensor, rotation: tuple[Tensor, float], passes: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Return attention of a pass over rows (S, T, D), whose keys and values are added to those of the passes before.

        Pass d of a position sees keys of the first pass up to d positions before, and one key of each later pass: those that
        it meets when a head drafts.
        """
        places = torch.arange(x.shape[1], device=x.device)
        (q, gate), (k, v) = self.queries(x), self.keys(x)
        q, k = (rotate(heads, places, rotation) for heads in (q, k))
        passes.append((k, v))
        behind, last = places[:, None] - places, len(passes) - 1
        visible = torch.cat([behind >= last, *(behind == last - i for i in range(1, len(passes)))], 1)
        out = attend(q, *(torch.cat(parts, 1) for parts in zip(*passes, strict=True)), visible[None])
        return out * gate.sigmoid() if self.gates == 2 else out

    def finish(self, h: Tensor, attended: Tensor) -> Tensor:
        """Return the stream `h` after the attention's output and the feed forward."""
        h = h + fn.linear(attended, self.attn_output)
        x = rms(h, self.ffn_norm, self.eps)
        return h + fn.linear(fn.silu(fn.linear(x, self.ffn_gate)) * fn.linear(x, self.ffn_up), self.ffn_down)

    def _normed(self, heads: Tensor, gain: Tensor | None) -> Tensor:
        return heads if gain is None else rms(heads, gain, self.eps)


class Rotation(nn.Module):
    """Frequencies of the rotary embedding, and the factor of cosine and sine."""

    def __init__(self, config: Config | DraftConfig | EagleConfig) -> None:
        super().__init__()
        frequencies, self.gain = inverse_frequencies(config)
        self.register_buffer("frequencies", torch.from_numpy(frequencies), persistent=False)

    def forward(self) -> tuple[Tensor, float]:
        """Return both, for `rotate`."""
        return self.frequencies, self.gain


def matrix(rows: int, columns: int) -> nn.Parameter:
    """Return a random matrix whose products have about the size of their inputs."""
    return nn.Parameter(torch.randn(rows, columns) * columns**-0.5)


class BlockDraftNet(nn.Module):
    """A DFlash draft."""

    def __init__(self, config: DraftConfig) -> None:
        super().__init__()
        c, self.config = config, config
        self.fc = matrix(c.width, len(c.target_layer_ids) * c.width)
        self.enc_output_norm, self.output_norm = (nn.Parameter(torch.ones(c.width)) for _ in range(2))
        self.blk = nn.ModuleList(Layer(c) for _ in range(c.n_layers))
        self.rotation = Rotation(c)

    def forward(self, features: Tensor, anchors: Tensor, block: Tensor) -> Tensor:
        """Return the hidden states (S, M, B, D) of blocks.

        Parameters
        ----------
        features : float32 (S, T, F * D)
            Of the texts.
        anchors : int64 (S, M)
            Positions of the blocks' first rows; a block sees the features before its own.
        block : float32 (S, M, B, D)
            Embeddings of the blocks: a text's token, then the mask token.
        """
        c = self.config
        n_texts, n, rows, _ = block.shape
        context = rms(fn.linear(features, self.fc), self.enc_output_norm, c.norm_eps)
        places = torch.arange(features.shape[1], device=features.device).expand(n_texts, -1)
        positions = (anchors[..., None] + torch.arange(rows, device=anchors.device)).flatten(1)  # (S, M * B)
        before = (places[:, None] < anchors[..., None]).repeat_interleave(rows, 1)  # (S, M * B, T)
        row = torch.arange(n * rows, device=anchors.device)
        same = (row[:, None] // rows == row // rows).expand(n_texts, -1, -1)
        places, both = torch.cat([places, positions], 1), torch.cat([before, same], -1)
        distance = positions[..., None] - places[:, None]
        h = block.flatten(1, 2)
        for layer, window, causal in zip(self.blk, c.windows, c.causal, strict=True):
            visible = both & (distance >= 0) if causal else both
            visible = visible & (distance.abs() < window) if window else visible
            x = rms(h, layer.attn_norm, c.norm_eps)
            keys, values = zip(layer.keys(context), layer.keys(x), strict=True)
            k = rotate(torch.cat(keys, 1), places, self.rotation())
            q = rotate(layer.queries(x)[0], positions, self.rotation())
            h = layer.finish(h, attend(q, k, torch.cat(values, 1), visible))
        return rms(h, self.output_norm, c.norm_eps).unflatten(1, (n, rows))


class MtpNet(nn.Module):
    """An MTP head: row j reads token j + 1 and the trunk's hidden state j, and predicts token j + 2.

    Its block is that of the trunk's architecture.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        c, self.config = config, config
        self.nextn_eh_proj = matrix(c.width, 2 * c.width)
        self.nextn_enorm, self.nextn_hnorm, self.nextn_shared_head_norm = (
            nn.Parameter(torch.ones(c.width)) for _ in range(3)
        )
        self.layer = Layer(c, normed="attn_q_norm.weight" in c.blocks.full, gates=2 if c.blocks.gated else 1)
        self.rotation = Rotation(c)

    def forward(self, embedded: Tensor, hidden: Tensor, passes: list[tuple[Tensor, Tensor]] | None = None) -> Tensor:
        """Return hidden states (S, T, D).

        Parameters
        ----------
        embedded : float32 (S, T, D)
            Embedding of the next token at each position.
        hidden : float32 (S, T, D)
            The trunk's hidden states; in a later pass what the pass before returned, one position later.
        passes : list of (Tensor, Tensor), optional
            Keys and values of the passes before, see `Layer.attended`.
        """
        c, layer = self.config, self.layer
        joined = [rms(embedded, self.nextn_enorm, c.norm_eps), rms(hidden, self.nextn_hnorm, c.norm_eps)]
        h = fn.linear(torch.cat(joined, -1), self.nextn_eh_proj)
        x = rms(h, layer.attn_norm, c.norm_eps)
        attended = layer.attended(x, self.rotation(), [] if passes is None else passes)
        return rms(layer.finish(h, attended), self.nextn_shared_head_norm, c.norm_eps)

    def first(self, features: Tensor, hidden: Tensor) -> Tensor:  # noqa: ARG002
        """Return the hidden states that the first pass reads: the trunk's."""
        return hidden


class EagleNet(nn.Module):
    """An EAGLE-3.1 head: features have a norm for each layer, and the next position reads the output of the last norm."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        c, self.config, n = config, config, len(config.target_layer_ids)
        self.fc = matrix(c.width, n * c.target_width)
        self.fc_norm = nn.ParameterList(torch.ones(c.target_width) for _ in range(n))
        self.output_norm = nn.Parameter(torch.ones(c.width))
        self.layer = Layer(c, normed=c.head_norms, wide=2)
        self.layer.hidden_norm = nn.Parameter(torch.ones(c.width))
        self.rotation = Rotation(c)

    def first(self, features: Tensor, hidden: Tensor) -> Tensor:  # noqa: ARG002
        """Return the hidden states that the first pass reads, from features (S, T, F * D)."""
        parts = features.chunk(len(self.fc_norm), -1)
        parts = [rms(part, gain, self.config.norm_eps) for part, gain in zip(parts, self.fc_norm, strict=True)]
        return fn.linear(torch.cat(parts, -1), self.fc)

    def forward(self, embedded: Tensor, hidden: Tensor, passes: list[tuple[Tensor, Tensor]] | None = None) -> Tensor:
        """Return hidden states (S, T, D); see `MtpNet.forward`."""
        c, layer = self.config, self.layer
        pair = [rms(embedded, layer.attn_norm, c.norm_eps), rms(hidden, layer.hidden_norm, c.norm_eps)]
        attended = layer.attended(torch.cat(pair, -1), self.rotation(), [] if passes is None else passes)
        return rms(layer.finish(hidden, attended), self.output_norm, c.norm_eps)
