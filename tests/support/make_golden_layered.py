"""Write the golden models of `gemma4` and `laguna`: tiny random weights as GGUF, and results of Transformers on them.

Run as ``python tests/support/make_golden_layered.py [NAME ...]``; see `make_golden_models`, of which this is the part for
models whose layers differ.
"""

import sys

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from make_golden_models import GREEDY, MERGES, VOCABULARY, begin, by_steps, finish, greedy, logits_of, rounded, save

PROMPT, CONTINUATION, TAIL = 16, 30, 4
WINDOW, FULL = "sliding_attention", "full_attention"

GEMMA = {
    "vocab_size": VOCABULARY,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "head_dim": 16,
    "global_head_dim": 32,
    "sliding_window": 12,
    "rms_norm_eps": 1e-6,
    "final_logit_softcapping": 4.0,
    "max_position_embeddings": 4096,
    "hidden_size_per_layer_input": 16,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "layer_types": [WINDOW, FULL, WINDOW, FULL],
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "pad_token_id": None,
    "rope_parameters": {
        WINDOW: {"rope_type": "default", "rope_theta": 1e4},
        FULL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
    },
}
LAGUNA = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_attention_heads_per_layer": [2, 4],
    "num_key_value_heads": 2,
    "head_dim": 16,
    "layer_types": [FULL, WINDOW],
    "mlp_layer_types": ["dense", "sparse"],
    "sliding_window": 12,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "moe_routed_scaling_factor": 1.5,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    "rope_parameters": {
        WINDOW: {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
        FULL: {
            "rope_type": "yarn",
            "rope_theta": 5e5,
            "partial_rotary_factor": 0.5,
            "factor": 8.0,
            "original_max_position_embeddings": 512,
            "beta_fast": 16.0,
            "beta_slow": 1.0,
            "attention_factor": 1.1,
        },
    },
}
MODELS = {
    "gemma4-experts": {
        "architecture": "gemma4",
        "seed": 8,
        "config": GEMMA | {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32},
    },
    "laguna-tiny": {"architecture": "laguna", "seed": 5, "config": LAGUNA},
    "gemma4-tiny": {"architecture": "gemma4", "seed": 3, "config": GEMMA},
}
RECORDED = ("gemma4-tiny", "laguna-tiny")
"""Models in the tree. The other is too large for it, and is compared by hand with DFLASH_GOLDEN."""
CLASSES = {"gemma4": ("Gemma4TextConfig", "Gemma4ForCausalLM"), "laguna": ("LagunaConfig", "LagunaForCausalLM")}

NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "layer_scalar": "layer_output_scale",
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
    "router.proj": "ffn_gate_inp",
    "experts.gate_up_proj": "ffn_gate_up_exps",
    "experts.down_proj": "ffn_down_exps",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
    "self_attn.g_proj": "attn_gate",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.down_proj": "ffn_down_exps",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}
"""Modules of a layer and their tensors in a file, which end in ``.weight``."""
SCALES = {"router.scale": "ffn_gate_inp", "router.per_expert_scale": "ffn_down_exps"}
OUTSIDE = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "model.embed_tokens_per_layer": "per_layer_token_embd",
    "model.per_layer_model_projection": "per_layer_model_proj",
    "model.per_layer_projection_norm": "per_layer_proj_norm",
}


def converted(name, values, architecture):
    """Yield name and values of the file's tensors for a tensor of the checkpoint."""
    part = name.removesuffix(".weight")
    if part in OUTSIDE:
        yield f"{OUTSIDE[part]}.weight", values
        return
    _, _, layer, module = part.split(".", 3)
    prefix = f"blk.{layer}."
    if module == "mlp.experts.gate_up_proj":
        gate, up = np.split(values, 2, axis=1)
        yield from ((f"{prefix}ffn_gate_exps.weight", gate), (f"{prefix}ffn_up_exps.weight", up))
    elif module == "mlp.gate.e_score_correction_bias":
        yield f"{prefix}exp_probs_b.bias", values
    elif module in SCALES:
        yield f"{prefix}{SCALES[module]}.scale", values
    elif module == "post_attention_layernorm" and architecture == "laguna":
        yield f"{prefix}ffn_norm.weight", values
    else:
        yield f"{prefix}{NAMES[module]}.weight", values


def type_of(name, shape):
    """Type that a tensor of the file gets: float32 as a converter leaves them, half where rows are no whole blocks."""
    if len(shape) == 1 or "ffn_gate_inp" in name:
        return Type.F32
    if shape[-1] % 32:
        return Type.F16
    return Type.Q8_0 if "attn_k" in name or "inp_gate" in name else Type.Q4_0


def initialise(model, architecture, seed):
    """Fill the weights with random values and round them; return the tensors of the file and their types."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, weight in model.state_dict().items():
        shape = tuple(weight.shape)
        if name == "lm_head.weight":
            continue
        if name.endswith("bias"):
            values = rng.normal(0, 0.3, shape)
        elif len(shape) == 1:
            values = (0.5 if "q_norm" in name else 1) + rng.normal(0, 0.1, shape)
        else:
            values = rng.normal(0, (2 if "embed" in name else 1) / np.sqrt(shape[-1]), shape)
        kind = type_of(next(converted(name, values, architecture))[0], shape)
        values = rounded(values.astype(np.float32), kind)
        weight.copy_(torch.from_numpy(values))
        for at, part in converted(name, values, architecture):
            tensors[at] = np.ascontiguousarray(part, np.float32), kind
    return tensors


def write(path, name, setting, config, tensors):
    """Write the file with the keys that the public converter writes."""
    given, slides = setting["config"], [kind == WINDOW for kind in config.layer_types]
    writer = begin(path, name, setting["architecture"], config)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(given["rope_parameters"][FULL]["rope_theta"])
    writer.add_rope_freq_base_swa(given["rope_parameters"][WINDOW]["rope_theta"])
    writer.add_sliding_window(given["sliding_window"])
    {"gemma4": add_gemma, "laguna": add_laguna}[setting["architecture"]](writer, given, config, slides)
    finish(writer, tensors)


def add_laguna(writer, given, config, _):
    """Add the keys of `laguna`; the layers with a window follow from their period."""
    writer.add_feed_forward_length(given["intermediate_size"])
    writer.add_head_count(given["num_attention_heads_per_layer"])
    writer.add_head_count_kv(given["num_key_value_heads"])
    writer.add_key_length(given["head_dim"])
    writer.add_value_length(given["head_dim"])
    full, window = (given["rope_parameters"][kind] for kind in (FULL, WINDOW))
    writer.add_rope_dimension_count(int(given["head_dim"] * full["partial_rotary_factor"]))
    writer.add_rope_dimension_count_swa(int(given["head_dim"] * window["partial_rotary_factor"]))
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(full["factor"])
    writer.add_rope_scaling_orig_ctx_len(full["original_max_position_embeddings"])
    writer.add_rope_scaling_yarn_attn_factor(full["attention_factor"])
    writer.add_rope_scaling_yarn_beta_fast(full["beta_fast"])
    writer.add_rope_scaling_yarn_beta_slow(full["beta_slow"])
    writer.add_expert_count(given["num_experts"])
    writer.add_expert_used_count(given["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(given["moe_intermediate_size"])
    writer.add_expert_shared_feed_forward_length(given["shared_expert_intermediate_size"])
    writer.add_expert_weights_norm(True)
    writer.add_expert_weights_scale(given["moe_routed_scaling_factor"])
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_leading_dense_block_count(config.mlp_layer_types.index("sparse"))


def add_gemma(writer, given, config, slides):
    """Add the keys of `gemma4`."""
    shared, ffn = given["num_kv_shared_layers"], given["intermediate_size"]
    first_shared = config.num_hidden_layers - shared
    writer.add_feed_forward_length([ffn * (2 if i >= first_shared else 1) for i in range(config.num_hidden_layers)])
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv([given["num_key_value_heads" if slide else "num_global_key_value_heads"] for slide in slides])
    for add, size in (("", given["global_head_dim"]), ("_swa", given["head_dim"])):
        for part in ("key", "value"):
            getattr(writer, f"add_{part}_length{add}")(size)
        getattr(writer, f"add_rope_dimension_count{add}")(size)
    writer.add_sliding_window_pattern(slides)
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(given["hidden_size_per_layer_input"])
    writer.add_final_logit_softcapping(given["final_logit_softcapping"])
    if given.get("enable_moe_block"):
        writer.add_expert_count(given["num_experts"])
        writer.add_expert_used_count(given["top_k_experts"])
        writer.add_expert_feed_forward_length(given["moe_intermediate_size"])


def rotation_factors(given):
    """Factors by which a converter divides the frequencies of full attention: those of pairs that do not rotate are huge."""
    size = given["global_head_dim"]
    rotated = int(size * given["rope_parameters"][FULL]["partial_rotary_factor"] / 2)
    return np.array([1.0] * rotated + [1e30] * (size // 2 - rotated), np.float32)


def results(model, seed):
    """Recorded arrays of a model, and how exact they are."""
    rng = np.random.default_rng(seed)
    tokens, outputs = rng.integers(0, 256 + MERGES, PROMPT + CONTINUATION).tolist(), {}
    prompt = tokens[:PROMPT]
    hooks = [
        layer.register_forward_hook(
            lambda _, __, out, i=i: outputs.__setitem__(i, out[0] if isinstance(out, tuple) else out)
        )
        for i, layer in enumerate(model.model.layers)
    ]
    cache = transformers.DynamicCache(config=model.config)
    alone = logits_of(model, prompt, cache)
    found = {}
    for i, out in outputs.items():
        found[f"prompt.layer{i}.out"] = out.numpy().reshape(PROMPT, -1).copy()
    for i, state in enumerate(cache.layers):
        if getattr(model.config, "layer_types", [FULL] * PROMPT)[i] == FULL and state.keys is not None:
            found[f"state.layer{i}.k"], found[f"state.layer{i}.v"] = state.keys[0].numpy(), state.values[0].numpy()
    for hook in hooks:
        hook.remove()
    whole, steps = logits_of(model, tokens), by_steps(model, tokens, PROMPT)
    chosen, margins = greedy(model, prompt, GREEDY)
    found |= {"tokens": np.array(tokens, np.int32), "n_prompt": np.array(PROMPT, np.int32), "logits_tail": whole[-TAIL:]}
    found |= {"greedy": np.array(chosen, np.int32), "greedy_margin": np.array(margins, np.float32)}
    exact = {"prompt_vs_steps": np.abs(whole - steps).max(), "prompt_alone_vs_whole": np.abs(whole[:PROMPT] - alone).max()}
    exact |= {"logit_std": whole.std(), "greedy_margin": min(margins)}
    return found, {name: float(value) for name, value in exact.items()}


@torch.no_grad()
def make(name):
    """Write file, results and info.json of a model."""
    setting = MODELS[name]
    config_class, model_class = (getattr(transformers, part) for part in CLASSES[setting["architecture"]])
    config = config_class(**setting["config"])
    config._attn_implementation = "eager"
    model = model_class(config).float().eval()
    tensors = initialise(model, setting["architecture"], setting["seed"])
    if setting["architecture"] == "gemma4":
        tensors["rope_freqs.weight"] = rotation_factors(setting["config"]), Type.F32
    save(name, setting, lambda path: write(path, name, setting, config, tensors), results(model, setting["seed"]))


if __name__ == "__main__":
    for wanted in sys.argv[1:] or RECORDED:
        make(wanted)
