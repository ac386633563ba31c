"""Random draft models, in both kinds of files, and a stand-in for their target."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import gguf
import numpy as np
from gguf_writing import write_all

from dflash.kernels.formats import Matrix
from dflash.model.draft.config import DraftConfig
from dflash.model.draft.files.names import expected

VOCAB, WIDTH, LAYERS = 203, 48, 9
"""Sizes of the target."""

SMALL = DraftConfig(
    kind="dflash",
    width=WIDTH,
    ffn=80,
    n_layers=3,
    heads=4,
    kv_heads=2,
    head_size=32,
    n_vocab=VOCAB,
    norm_eps=1e-6,
    rope_base=1e4,
    rope_scaling=None,
    block=6,
    mask=VOCAB - 2,
    target_layer_ids=(0, 3, 8),
    windows=(20, 0, 20),
    causal=(True, False, True),
)
SECOND = replace(
    SMALL,
    kind="dflash2",
    windows=(20,) * 3,
    causal=(False,) * 3,
    conv_width=2,
    conv_group=16,
    selector_rank=32,
    selector_top=5,
)
SPARK = replace(SMALL, kind="dspark", markov_rank=16, from_anchor=True, has_confidence=True)
KINDS = {"dflash": SMALL, "dflash2": SECOND, "dspark": SPARK}

_GAINS = re.compile(r".*norm\.weight")

_TORCH = (
    (r"enc\.output_norm\.weight", "hidden_norm.weight"),
    (r"output_norm\.weight", "norm.weight"),
    (r"token_embd\.weight", "embed_tokens.weight"),
    (r"output\.weight", "lm_head.weight"),
    (r"blk\.(\d+)\.attn_norm\.weight", r"layers.\1.input_layernorm.weight"),
    (r"blk\.(\d+)\.ffn_norm\.weight", r"layers.\1.post_attention_layernorm.weight"),
    (r"blk\.(\d+)\.attn_([qkv])\.weight", r"layers.\1.self_attn.\2_proj.weight"),
    (r"blk\.(\d+)\.attn_output\.weight", r"layers.\1.self_attn.o_proj.weight"),
    (r"blk\.(\d+)\.attn_([qk])_norm\.weight", r"layers.\1.self_attn.\2_norm.weight"),
    (r"blk\.(\d+)\.ffn_(gate|up|down)\.weight", r"layers.\1.mlp.\2_proj.weight"),
    (r"blk\.(\d+)\.attn_conv_base", r"layers.\1.attention_conv.base_kernel"),
    (r"blk\.(\d+)\.attn_conv_proj\.weight", r"layers.\1.attention_conv.kernel_projection.weight"),
    (r"blk\.(\d+)\.ffn_conv_base", r"layers.\1.mlp_conv.base_kernel"),
    (r"blk\.(\d+)\.ffn_conv_proj\.weight", r"layers.\1.mlp_conv.kernel_projection.weight"),
    (r"selector_(predecessor|successor)\.weight", r"candidate_selector.\1_codebook"),
    (r"selector_hidden\.weight", "candidate_selector.hidden_projection.weight"),
    (r"markov_w([12])\.weight", r"markov_head.markov_w\1.weight"),
    (r"conf_proj\.(weight|bias)", r"confidence_head.proj.\1"),
)


def random_weights(config, seed=0, n_head=None, own=()):
    """Float32 by canonical name; `own` names optional tensors that are there, too."""
    rng, weights, n_head = np.random.default_rng(seed), {}, n_head or config.n_vocab
    for name, shape in expected(config, config.n_vocab, n_head).items():
        if name in {"token_embd.weight", "output.weight", "d2t"} and name not in own:
            continue
        values = rng.standard_normal(shape, dtype=np.float32)
        if _GAINS.fullmatch(name):
            values = 1 + 0.2 * values
        elif name.endswith("conv_base"):
            values = 0.3 * values + np.array([1, 0], np.float32)[None, :, None]
        elif len(shape) == 2:
            values = values / np.float32(np.sqrt(shape[1]))
        weights[name] = values
    if "selector_predecessor.weight" in weights:
        weights["selector_predecessor.weight"] *= 4
        weights["selector_successor.weight"] *= 4
    if "d2t" in own:
        weights["d2t"] = np.sort(rng.permutation(config.n_vocab)[:n_head]).astype(np.int64)
    return weights


def shapes(config):
    """Shapes of all tensors by name."""
    return {name: value.shape for name, value in random_weights(config).items()}


def write_gguf(path, config, weights, *, changes=None, architecture="dflash", drop=()):
    """The mainline form; `changes` to its keys (None removes one)."""
    keys = {
        "block_count": config.n_layers,
        "context_length": 4096,
        "embedding_length": config.width,
        "feed_forward_length": config.ffn,
        "attention.head_count": config.heads,
        "attention.head_count_kv": config.kv_heads,
        "attention.key_length": config.head_size,
        "attention.value_length": config.head_size,
        "attention.layer_norm_rms_epsilon": config.norm_eps,
        "attention.causal": False,
        "attention.sliding_window": max(config.windows),
        "attention.sliding_window_pattern": [w > 0 for w in config.windows],
        "rope.freq_base": config.rope_base,
        "block_size": config.block,
        "target_layers": [tap + 1 for tap in config.target_layer_ids],
        "vocab_size": config.n_vocab,
        "tokenizer.ggml.mask_token_id": config.mask,
    }
    if config.kind == "dflash2":
        keys |= {"conv_kernel_size": config.conv_width, "conv_group_size": config.conv_group}
        keys |= {"selector_rank": config.selector_rank, "selector_top_k": config.selector_top}
    if config.kind == "dspark":
        keys |= {"sample_from_anchor": config.from_anchor, "has_confidence_head": config.has_confidence}
    keys |= {"logit_scale": config.logit_scale, "final_logit_softcapping": config.logit_cap}
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in (keys | (changes or {})).items():
        if value is not None:
            _add(writer, name if name.startswith("tokenizer.") else f"{architecture}.{name}", value)
    for name, value in weights.items():
        if name not in drop:
            writer.add_tensor(name, np.ascontiguousarray(value))
    write_all(writer)
    return path


def _add(writer, name, value):
    if isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif isinstance(value, str):
        writer.add_string(name, value)
    else:
        writer.add_array(name, value)


def torch_name(name):
    for pattern, meant in _TORCH:
        match = re.fullmatch(pattern, name)
        if match:
            return match.expand(meant)
    return name


def json_config(config, **changes):
    """A ``config.json`` as the drafts are published with; None removes a key."""
    names = {"dflash": "DFlashDraftModel", "dflash2": "DFlash2DraftModel", "dspark": "DSparkDraftModel"}
    inner = {"mask_token_id": config.mask, "target_layer_ids": list(config.target_layer_ids)}
    made = {
        "architectures": [names[config.kind]],
        "hidden_size": config.width,
        "intermediate_size": config.ffn,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_size,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_base,
        "vocab_size": config.n_vocab,
        "block_size": config.block,
        "layer_types": ["sliding_attention" if w else "full_attention" for w in config.windows],
        "sliding_window": max(config.windows),
        "dflash_config": inner,
    }
    if config.kind == "dflash2":
        inner |= {"conv_kernel_size": config.conv_width, "conv_group_size": config.conv_group}
        inner |= {"selector_rank": config.selector_rank, "selector_top_k": config.selector_top}
        made["is_causal"] = False
    if config.kind == "dspark":
        made |= {"markov_rank": config.markov_rank, "sample_from_anchor": config.from_anchor}
        made |= {"enable_confidence_head": config.has_confidence}
    return {name: value for name, value in (made | changes).items() if value is not None}


def safetensors(tensors):
    """The bytes of a file: name to (type, array)."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (kind, array) in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def write_folder(folder, config, weights, *, kind="F32", drop=(), **changes):
    """The published form; `changes` to its ``config.json``."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(json_config(config, **changes)))
    stored = {}
    for name, value in weights.items():
        if name == "d2t":
            stored[name] = ("I64", value - np.arange(len(value)))
        elif name not in drop:
            stored[torch_name(name)] = (kind, _as(value, kind))
    (folder / "model.safetensors").write_bytes(safetensors(stored))
    return folder


def _as(values, kind):
    if kind == "BF16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype({"F16": np.float16, "F32": np.float32}[kind])


def target(config=SMALL, seed=7, **changes):
    """Stands for a model of `VOCAB` tokens: what `load_draft` asks of it. `tables` holds embedding and head."""
    rng = np.random.default_rng(seed)
    tables = {name: rng.standard_normal((VOCAB, WIDTH), dtype=np.float32) for name in ("token_embd.weight", "output.weight")}
    sizes = {"width": WIDTH, "n_vocab": VOCAB, "n_layers": LAYERS, "rope_base": config.rope_base, "context": 256}
    weights = SimpleNamespace(
        metadata={}, matrix=lambda name: Matrix(tables[name].view(np.uint8).reshape(VOCAB, -1), "F32", name)
    )
    return SimpleNamespace(
        config=SimpleNamespace(**(sizes | {"tied": False} | changes)),
        device="cpu",
        threads=1,
        pools=SimpleNamespace(kv="f32"),
        weights=weights,
        tables=tables,
    )


def features(config, n, seed=1):
    """Outputs of the target's layers at `n` positions, by layer, and side by side as the oracle reads them."""
    rng = np.random.default_rng(seed)
    by_layer = {tap: rng.standard_normal((n, config.width), dtype=np.float32) for tap in config.target_layer_ids}
    return by_layer, np.concatenate([by_layer[tap] for tap in config.target_layer_ids], axis=1)
