"""Write the golden models of `llama` and `qwen2`: tiny random weights as GGUF, and results of Transformers on them.

Run as ``python tests/support/make_golden_llama.py [NAME ...]``; see `make_golden_models`, of which this is the part for
models without norms of queries and keys.
"""

import sys

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from make_golden_layered import results
from make_golden_models import VOCABULARY, begin, finish, rounded, save

COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
}
LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
MODELS = {
    "llama-tiny": {
        "architecture": "llama",
        "classes": ("LlamaConfig", "LlamaForCausalLM"),
        "seed": 1,
        "types": (Type.Q8_0, Type.Q4_1),
        "config": COMMON | {"tie_word_embeddings": True, "rope_parameters": LLAMA_3},
    },
    "llama-untied": {
        "architecture": "llama",
        "classes": ("LlamaConfig", "LlamaForCausalLM"),
        "seed": 2,
        "types": (Type.Q5_0, Type.Q4_1),
        "config": COMMON
        | {"num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": False}
        | {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
    },
    "llama-experts": {
        "architecture": "llama",
        "classes": ("MixtralConfig", "MixtralForCausalLM"),
        "seed": 3,
        "types": (Type.Q8_0, Type.Q4_0),
        "config": COMMON
        | {"intermediate_size": 32, "num_local_experts": 4, "num_experts_per_tok": 2, "tie_word_embeddings": True}
        | {"head_dim": 32, "sliding_window": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    },
    "qwen2-tiny": {
        "architecture": "qwen2",
        "classes": ("Qwen2Config", "Qwen2ForCausalLM"),
        "seed": 4,
        "types": (Type.Q8_0, Type.Q4_0),
        "config": COMMON
        | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
        | {"tie_word_embeddings": True, "rope_parameters": YARN},
    },
}
NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.down_proj": "ffn_down_exps",
}
"""Modules of a layer and their tensors in a file."""
OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def interleaved(values, heads):
    """Rows of a projection as a converter arranges those of queries and keys: the two elements of a pair are neighbours."""
    halves = values.reshape(heads, 2, -1, values.shape[-1])
    return halves.transpose(0, 2, 1, 3).reshape(values.shape)


def converted(name, values, setting):
    """Yield name and values of the file's tensors for a tensor of the checkpoint."""
    part, _, kind = name.rpartition(".")
    if part in OUTSIDE:
        yield f"{OUTSIDE[part]}.weight", values
        return
    module = name.split(".", 3)[3]
    prefix = f"blk.{name.split('.')[2]}."
    if module == "mlp.experts.gate_up_proj":
        gate, up = np.split(values, 2, axis=1)
        yield from ((f"{prefix}ffn_gate_exps.weight", gate), (f"{prefix}ffn_up_exps.weight", up))
        return
    module = module if module in NAMES else module.removesuffix(f".{kind}")
    heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}.get(NAMES[module])
    if heads and setting["architecture"] == "llama":
        values = interleaved(values, setting["config"][heads])
    kind = "bias" if kind == "bias" else "weight"
    yield f"{prefix}{NAMES[module]}.{kind}", values


def initialise(model, setting):
    """Fill the weights with random values and round them; return the tensors of the file and their types."""
    rng, tensors = np.random.default_rng(setting["seed"]), {}
    attention, other = setting["types"]
    for name, weight in model.state_dict().items():
        shape = tuple(weight.shape)
        if name == "lm_head.weight" and setting["config"]["tie_word_embeddings"]:
            continue
        centre, spread = (
            (1, 0.1)
            if "norm" in name
            else (0, 0.5)
            if len(shape) == 1
            else (0, (2 if "embed" in name else 1) / np.sqrt(shape[-1]))
        )
        values = rng.normal(centre, spread, shape).astype(np.float32)
        at = next(converted(name, values, setting))[0]
        kind = Type.F32 if len(shape) == 1 or "ffn_gate_inp" in at else attention if "attn" in at or "embd" in at else other
        values = rounded(values, kind)
        weight.copy_(torch.from_numpy(values))
        for at, part in converted(name, values, setting):
            tensors[at] = np.ascontiguousarray(part, np.float32), kind
    return tensors


def rotation_factors(model):
    """Factors by which frequencies are divided: the usual ones by those of the model."""
    rope = model.config.rope_parameters
    size = model.config.head_dim
    usual = 1 / rope["rope_theta"] ** (torch.arange(0, size, 2).float() / size)
    return (usual / model.model.rotary_emb.inv_freq).numpy().astype(np.float32)


def write(path, name, setting, config, tensors):
    """Write the file with the keys that the public converter writes."""
    rope = setting["config"]["rope_parameters"]
    writer = begin(path, name, setting["architecture"], config)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(setting["config"]["head_dim"])
    writer.add_value_length(setting["config"]["head_dim"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(setting["config"]["head_dim"])
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if "num_local_experts" in setting["config"]:
        writer.add_expert_count(config.num_local_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    finish(writer, tensors)


@torch.no_grad()
def make(name):
    """Write file, results and info.json of a model."""
    setting = MODELS[name]
    config_class, model_class = (getattr(transformers, part) for part in setting["classes"])
    config = config_class(**setting["config"])
    config._attn_implementation = "eager"
    model = model_class(config).float().eval()
    tensors = initialise(model, setting)
    if setting["config"]["rope_parameters"]["rope_type"] == "llama3":
        tensors["rope_freqs.weight"] = rotation_factors(model), Type.F32
    named = setting | {"types": [kind.name for kind in setting["types"]]}
    save(name, named, lambda path: write(path, name, setting, config, tensors), results(model, setting["seed"]))


if __name__ == "__main__":
    for wanted in sys.argv[1:] or MODELS:
        make(wanted)
