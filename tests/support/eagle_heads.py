"""EAGLE-3 heads with random weights, in the folders of SpecForge and of speculators."""

import json

import numpy as np
from drafts import safetensors

from dflash.model.batch import Span
from dflash.model.state.host_arrays import to_host

TARGET = "qwen35-r2-mtp-F16"
"""The golden model for which the heads of `CASES` have the sizes: width 96, 4 layers, 512 tokens."""

LAYERS = (0, 1, 3)
"""Outputs of the target that they read."""

LAYER = {
    "vocab_size": 512,
    "hidden_size": 96,
    "intermediate_size": 112,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
    "attention_bias": False,
    "tie_word_embeddings": False,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
CASES = {
    "llama": {"draft": 128},
    "llama, yarn, norm of all features": {"draft": 128, "rope_parameters": YARN, "norm_before_fc": True},
    "qwen3, normed residual": {"draft": 512, "model_type": "qwen3", "norm_before_residual": True},
    "qwen3, 3.1": {"draft": 128, "model_type": "qwen3", "fc_norm": True, "norm_output": True},
}
"""Heads by name: size of the draft vocabulary, and what differs from `LAYER` and from the defaults of speculators."""

FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


def settings(draft=128, model_type="llama", layers=LAYERS, **changes):
    """A ``config.json`` of speculators, which counts inputs of layers."""
    flags = {name: changes.pop(name) for name in FLAGS if name in changes}
    return {
        "speculators_model_type": "eagle3",
        "architectures": ["Eagle3Speculator"],
        "draft_vocab_size": draft,
        "eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in layers],
        "transformer_layer_config": LAYER | {"model_type": model_type} | changes,
        **flags,
    }


def tensors(config, seed=0, *, embedding=True):
    """Weights by name in speculators, whose values bfloat16 holds; `d2t` and `t2d` if the draft vocabulary is smaller."""
    rng, layer = np.random.default_rng(seed), config["transformer_layer_config"]
    h, inner, size = layer["hidden_size"], layer["intermediate_size"], layer["head_dim"]
    q, kv, n = layer["num_attention_heads"] * size, layer["num_key_value_heads"] * size, layer["vocab_size"]
    n_head, n_features = config["draft_vocab_size"], len(config["eagle_aux_hidden_state_layer_ids"])
    shapes = {"fc.weight": (h, n_features * h), "norm.weight": (h,), "lm_head.weight": (n_head, h)}
    shapes |= {f"layers.0.{name}.weight": (h,) for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")}
    shapes |= {f"layers.0.self_attn.{name}_proj.weight": (rows, 2 * h) for name, rows in (("q", q), ("k", kv), ("v", kv))}
    shapes |= {"layers.0.self_attn.o_proj.weight": (h, q), "layers.0.mlp.down_proj.weight": (h, inner)}
    shapes |= {f"layers.0.mlp.{name}_proj.weight": (inner, h) for name in ("gate", "up")}
    if layer["model_type"] == "qwen3":
        shapes |= {f"layers.0.self_attn.{name}_norm.weight": (size,) for name in "qk"}
    if config.get("norm_before_fc"):
        shapes["input_norm.weight"] = (n_features * h,)
    if config.get("fc_norm"):
        shapes |= {f"fc_norm.{i}.weight": (h,) for i in range(n_features)}
    if embedding:
        shapes["embed_tokens.weight"] = (n, h)
    found = {}
    for name, shape in shapes.items():
        values = rng.standard_normal(shape)
        gain = 3 if name == "lm_head.weight" else 1
        values = 1 + 0.2 * values if len(shape) == 1 else gain * values / (1 if "embed" in name else np.sqrt(shape[1]))
        found[name] = (values.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)
    if n_head < n:
        chosen = np.sort(rng.permutation(n)[:n_head])
        found["d2t"], found["t2d"] = chosen - np.arange(n_head), np.isin(np.arange(n), chosen)
    return found


def stored(found, kind="BF16"):
    """Types and arrays as `safetensors` takes them."""
    halves = {name: value for name, value in found.items() if value.dtype == np.float32}
    plain = {"d2t": "I64", "t2d": "BOOL"}
    as_kind = {"BF16": lambda x: (x.view(np.uint32) >> 16).astype(np.uint16), "F32": lambda x: x}[kind]
    kept = {name: (plain[name], value) for name, value in found.items() if name in plain}
    return {name: (kind, as_kind(value)) for name, value in halves.items()} | kept


def write_speculators(folder, seed=0, *, embedding=True, kind="BF16", **case):
    """Write a head as speculators does; return its folder."""
    config = settings(**case)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(safetensors(stored(tensors(config, seed, embedding=embedding), kind)))
    return folder


def write_specforge(folder, seed=0, *, embedding=True, layers=LAYERS, **case):
    """Write the same head as SpecForge does: sizes at the top, outputs of layers, and a layer called ``midlayer``."""
    config = settings(layers=layers, **case)
    found = {
        name.replace("layers.0.", "midlayer."): value for name, value in tensors(config, seed, embedding=embedding).items()
    }
    flat = {name: config[name] for name in FLAGS if name in config} | config["transformer_layer_config"]
    flat |= {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": config["draft_vocab_size"]}
    flat["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": list(layers), "use_aux_hidden_state": True}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(flat))
    (folder / "model.safetensors").write_bytes(safetensors(stored(found)))
    return folder


def write_fitted(folder, model, ids):
    """Write a head that knows a text of the model: the first token that it drafts is often right.

    Attention and feed forward add nothing, and the LM head is a least-squares fit of the last layer's outputs to the tokens
    after the next.
    """
    state, last, width, n = model.state(), model.config.n_layers - 1, model.config.width, model.config.n_vocab
    out = model.forward([Span.chain(state, ids[:-2], prefill=True)], capture=(last,))
    x = to_host(out.captured[last])
    state.close()
    x = (x / np.sqrt((x**2).mean(1, keepdims=True))).astype(np.float64)
    gram = x @ x.T + 0.1 * np.eye(len(x))
    config = settings(draft=n, layers=(last,), hidden_size=width, vocab_size=n)
    found = tensors(config, embedding=False) | {"fc.weight": np.eye(width, dtype=np.float32)}
    found["lm_head.weight"] = np.float32(20 * (x.T @ np.linalg.solve(gram, np.eye(n)[ids[2:]])).T)
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        found[f"layers.0.{name}.weight"] *= 0
    found["norm.weight"][:] = 1
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(safetensors(stored(found, "F32")))
    return folder


def features(n, seed=1, width=96, n_layers=3):
    """Random features of `n` positions, side by side, of different sizes as those of early and late layers are."""
    rng = np.random.default_rng(seed)
    return np.concatenate([s * rng.standard_normal((n, width)) for s in (0.5, 2, 8)[:n_layers]], axis=1).astype(np.float32)
