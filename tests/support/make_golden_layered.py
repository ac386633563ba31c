"""Write the golden models of `gemma4`: tiny random weights as GGUF, and results of Transformers on them.

Run as ``python tests/support/make_golden_layered.py [NAME ...]``; see `make_golden_models`, of which this is the part for
models whose layers differ.
"""

import hashlib
import json
import sys

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from make_golden_models import FOLDER, GREEDY, MERGES, VOCABULARY, add_tokenizer, by_steps, greedy, logits_of, rounded

PROMPT, CONTINUATION, TAIL = 28, 30, 8
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
MODELS = {
    "gemma4-tiny": {"architecture": "gemma4", "seed": 3, "config": GEMMA},
}
CLASSES = {"gemma4": ("Gemma4TextConfig", "Gemma4ForCausalLM")}

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
}
"""Modules of a layer and their tensors in a file, which end in ``.weight``."""
OUTSIDE = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "model.embed_tokens_per_layer": "per_layer_token_embd",
    "model.per_layer_model_projection": "per_layer_model_proj",
    "model.per_layer_projection_norm": "per_layer_proj_norm",
}


def name_of(name):
    """Name in a file of a tensor of the checkpoint."""
    part = name.removesuffix(".weight")
    if part in OUTSIDE:
        return f"{OUTSIDE[part]}.weight"
    _, _, layer, module = part.split(".", 3)
    return f"blk.{layer}.{NAMES[module]}.weight"


def type_of(name, shape):
    """Type that a tensor of the file gets: float32 as a converter leaves them, half where rows are no whole blocks."""
    if len(shape) == 1:
        return Type.F32
    if shape[-1] % 32:
        return Type.F16
    return Type.Q8_0 if "attn_k" in name or "inp_gate" in name else Type.Q4_0


def initialise(model, seed):
    """Fill the weights with random values and round them; return the tensors of the file and their types."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, weight in model.state_dict().items():
        shape, at = tuple(weight.shape), None if name == "lm_head.weight" else name_of(name)
        if at is None:
            continue
        if len(shape) == 1:
            values = (0.5 if "q_norm" in name else 1) + rng.normal(0, 0.1, shape)
        else:
            values = rng.normal(0, (2 if "embed" in name else 1) / np.sqrt(shape[-1]), shape)
        kind = type_of(at, shape)
        values = rounded(values.astype(np.float32), kind)
        weight.copy_(torch.from_numpy(values))
        tensors[at] = np.ascontiguousarray(values, np.float32), kind
    return tensors


def write(path, name, setting, config, tensors):
    """Write the file with the keys that the public converter writes."""
    given, slides = setting["config"], [kind == WINDOW for kind in config.layer_types]
    writer = gguf.GGUFWriter(path, setting["architecture"])
    writer.add_type("model")
    writer.add_name(name)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    shared, ffn = given["num_kv_shared_layers"], given["intermediate_size"]
    first_shared = config.num_hidden_layers - shared
    writer.add_feed_forward_length([ffn * (2 if i >= first_shared else 1) for i in range(config.num_hidden_layers)])
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv([given["num_key_value_heads" if slide else "num_global_key_value_heads"] for slide in slides])
    for add, size in (("", given["global_head_dim"]), ("_swa", given["head_dim"])):
        for part in ("key", "value"):
            getattr(writer, f"add_{part}_length{add}")(size)
        getattr(writer, f"add_rope_dimension_count{add}")(size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(given["rope_parameters"][FULL]["rope_theta"])
    writer.add_rope_freq_base_swa(given["rope_parameters"][WINDOW]["rope_theta"])
    writer.add_sliding_window(given["sliding_window"])
    writer.add_sliding_window_pattern(slides)
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(given["hidden_size_per_layer_input"])
    writer.add_final_logit_softcapping(given["final_logit_softcapping"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(2)
    add_tokenizer(writer)
    for at, (values, kind) in tensors.items():
        writer.add_tensor(at, values if kind == Type.F32 else gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


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
        if model.config.layer_types[i] == FULL and state.keys is not None:
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
    tensors = initialise(model, setting["seed"])
    tensors["rope_freqs.weight"] = rotation_factors(setting["config"]), Type.F32
    folder = FOLDER / name
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-Q8_0.gguf"
    write(path, name, setting, config, tensors)
    found, exact = results(model, setting["seed"])
    np.savez_compressed(path.with_suffix(".npz"), **found)
    info = {
        "config": setting,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "exactness": exact,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
    (folder / "info.json").write_text(json.dumps(info, separators=(",", ":")) + "\n")
    print(name, exact, path.stat().st_size, path.with_suffix(".npz").stat().st_size)


if __name__ == "__main__":
    for wanted in sys.argv[1:] or MODELS:
        make(wanted)
