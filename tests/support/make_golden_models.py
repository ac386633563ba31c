"""Write the golden models of `qwen3moe` and `qwen3next`: tiny random weights as GGUF, and results of Transformers on them.

Run as ``python tests/support/make_golden_models.py [NAME ...]`` with torch and transformers installed; info.json has
their versions. The weights of the Transformers model are rounded to what the file's types hold, then renamed and arranged as
the public converter to GGUF does. Transformers computes in float32 on a CPU. Vocabulary and template are those of another
golden file, cut to `VOCABULARY` tokens.
"""

import hashlib
import json
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from gguf_writing import write_all

FOLDER = Path(__file__).parent.parent / "data" / "golden"
TOKENIZER = FOLDER / "qwen3-dense" / "qwen3-dense-Q4_0.gguf"
VOCABULARY, MERGES = 288, 12
PROMPT, CONTINUATION, TAIL, GREEDY = 40, 42, 16, 16
CANDIDATES = 16
"""Tokens that are tried for each position of a recorded text."""
CLEAR = 0.005
"""Difference of logits that a router needs for a greedy token to be recorded after it; float16 moves them by 0.002."""

COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "moe_intermediate_size": 32,
    "rms_norm_eps": 1e-6,
    "norm_topk_prob": True,
    "max_position_embeddings": 4096,
}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 3,
    "layer_types": ["linear_attention", "linear_attention", "full_attention"],
    "partial_rotary_factor": 0.25,
}
MODELS = {
    "qwen3moe-tiny": {
        "architecture": "qwen3moe",
        "seed": 21,
        "rope_theta": 1e6,
        "config": COMMON
        | {"num_hidden_layers": 2, "num_experts": 8, "num_experts_per_tok": 2, "tie_word_embeddings": False},
    },
    "qwen3next-tiny": {
        "architecture": "qwen3next",
        "seed": 6,
        "rope_theta": 1e7,
        "config": COMMON
        | LINEAR
        | {
            "num_hidden_layers": 3,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "shared_expert_intermediate_size": 32,
            "tie_word_embeddings": True,
        },
    },
}
CLASSES = {"qwen3moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM"), "qwen3next": ("Qwen3NextConfig", "Qwen3NextForCausalLM")}

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.down_proj": "ffn_down_exps",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
}
"""Modules of a layer and their tensors in a file, which end in ``.weight``."""
OUTSIDE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def type_of(name):
    """Type that a tensor of the file gets: float32 as a converter leaves them, else two quantized types."""
    kept = ("norm.weight", "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "ssm_conv1d.weight", "ssm_a", "ssm_dt.bias")
    if name.endswith(kept):
        return Type.F32
    if "ssm_ba" in name:
        return Type.F16
    return Type.Q4_0 if "_exps" in name else Type.Q8_0


def rounded(values, kind):
    """Values that a type holds."""
    if kind == Type.F32:
        return values
    return gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind).reshape(values.shape)


def converted(name, values, config, post_norm):
    """Yield name and values of the file's tensors for a tensor of the checkpoint."""
    centred = config.model_type == "qwen3_next" and name.endswith("norm.weight") and "linear_attn" not in name
    values = values + 1 if centred else values
    if name in OUTSIDE:
        yield OUTSIDE[name], values
        return
    _, _, layer, module = name.split(".", 3)
    prefix, part = f"blk.{layer}.", module.removesuffix(".weight")
    if part == "post_attention_layernorm":
        yield prefix + post_norm, values
    elif part == "linear_attn.A_log":
        yield prefix + "ssm_a", -np.exp(values)
    elif part == "linear_attn.dt_bias":
        yield prefix + "ssm_dt.bias", values
    elif part == "mlp.experts.gate_up_proj":
        gate, up = np.split(values, 2, axis=1)
        yield from ((f"{prefix}ffn_gate_exps.weight", gate), (f"{prefix}ffn_up_exps.weight", up))
    elif part == "linear_attn.in_proj_qkvz":
        # the checkpoint has the rows of each key head together, the file has those of q, k, v and z together
        heads, size = config.linear_num_key_heads, config.linear_key_head_dim
        of_head = values.reshape(heads, -1, values.shape[1])
        run = (of_head.shape[1] - 2 * size) // 2
        *qkv, z = (x.reshape(-1, values.shape[1]) for x in np.split(of_head, (size, 2 * size, 2 * size + run), axis=1))
        yield from ((f"{prefix}attn_qkv.weight", np.concatenate(qkv)), (f"{prefix}attn_gate.weight", z))
    else:
        yield f"{prefix}{NAMES[part]}.weight", values[:, 0] if part == "linear_attn.conv1d" else values


def initialise(model, seed):
    """Fill the weights with random values and round them; return the tensors of the file."""
    rng = np.random.default_rng(seed)
    config = model.config
    post_norm = "ffn_norm.weight" if config.model_type == "qwen3_moe" else "post_attention_norm.weight"
    tensors = {}
    for name, weight in model.state_dict().items():
        shape = tuple(weight.shape)
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if name.endswith("A_log"):
            values = np.log(rng.uniform(0.05, 4, shape))
        elif name.endswith("dt_bias"):
            values = rng.normal(-1, 1, shape)
        elif name.endswith("norm.weight"):
            centre = 0 if config.model_type == "qwen3_next" and "linear_attn" not in name else 1
            values = centre + rng.normal(0, 0.1, shape)
        else:
            gain = 2 if name in OUTSIDE else 3 if name.endswith("mlp.gate.weight") else 1
            values = rng.normal(0, gain / np.sqrt(shape[-1]), shape)
        values = values.astype(np.float32)
        kind = type_of(next(converted(name, values, config, post_norm))[0])
        values = rounded(values, kind)
        weight.copy_(torch.from_numpy(values))
        for at, part in converted(name, values, config, post_norm):
            tensors[at] = part = np.ascontiguousarray(part, dtype=np.float32)
            assert np.array_equal(rounded(part, kind), part), f"{at}: {kind.name} does not hold the values of {name}"
    return tensors


def begin(path, name, architecture, config):
    """Begin a file with the keys that all models have."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_type("model")
    writer.add_name(name)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    return writer


def finish(writer, tensors):
    """Write a file with the tokenizer and with tensors, each given with its type."""
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(2)
    add_tokenizer(writer)
    for at, (values, kind) in tensors.items():
        writer.add_tensor(at, values if kind == Type.F32 else gguf.quants.quantize(values, kind), raw_dtype=kind)
    write_all(writer)


def write(path, name, setting, config, tensors):
    """Write the file with the keys that the public converter writes."""
    architecture = setting["architecture"]
    writer = begin(path, name, architecture, config)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(setting["rope_theta"])
    writer.add_expert_count(config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if architecture == "qwen3next":
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
        writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
        writer.add_ssm_state_size(config.linear_key_head_dim)
        writer.add_ssm_group_count(config.linear_num_key_heads)
        writer.add_ssm_time_step_rank(config.linear_num_value_heads)
        writer.add_ssm_inner_size(config.linear_value_head_dim * config.linear_num_value_heads)
        writer.add_uint32(f"{architecture}.full_attention_interval", LINEAR["full_attention_interval"])
        writer.add_rope_dimension_count(config.head_dim // 4)
    finish(writer, {at: (values, type_of(at)) for at, values in tensors.items()})


def add_tokenizer(writer):
    """Add byte tokens, some merges and the special tokens of another golden file."""
    fields = gguf.GGUFReader(TOKENIZER).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    special = tokens[tokens.index("<|endoftext|>") : tokens.index("</think>") + 1]
    kept = tokens[: 256 + MERGES] + special
    kinds = [1] * (256 + MERGES) + [4 if "<|" not in token else 3 for token in special]
    padding = VOCABULARY - len(kept)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([*kept, *(f"[PAD{i}]" for i in range(padding))])
    writer.add_token_types([*kinds, *([5] * padding)])
    writer.add_token_merges(fields["tokenizer.ggml.merges"].contents()[:MERGES])
    writer.add_eos_token_id(kept.index("<|im_end|>"))
    writer.add_pad_token_id(kept.index("<|endoftext|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(fields["tokenizer.chat_template"].contents())


def logits_of(model, tokens, cache=None):
    """Logits of tokens, a NumPy array."""
    return model(torch.tensor(tokens)[None], past_key_values=cache, use_cache=cache is not None).logits[0].numpy()


def by_steps(model, tokens, n_prompt):
    """Logits of a text whose tokens after the prompt are read one by one."""
    cache = transformers.DynamicCache(config=model.config)
    rows = [logits_of(model, tokens[:n_prompt], cache)]
    rows += [logits_of(model, [token], cache) for token in tokens[n_prompt:]]
    return np.concatenate(rows)


def greedy(model, prompt, n):
    """Tokens with the largest logit, one after the other, and the margin of each."""
    cache, tokens, margins = transformers.DynamicCache(config=model.config), list(prompt), []
    row = logits_of(model, tokens, cache)[-1]
    for _ in range(n):
        second, first = np.sort(row)[-2:]
        tokens.append(int(row.argmax()))
        margins.append(first - second)
        row = logits_of(model, tokens[-1:], cache)[-1]
    return tokens[len(prompt) :], margins


def results(model, seed):
    """Recorded arrays of a model, and how exact they are."""
    rng = np.random.default_rng(seed)
    tokens, outputs = clear_tokens(model, rng, PROMPT + CONTINUATION), {}
    prompt = tokens[:PROMPT]
    for i, layer in enumerate(model.model.layers):
        layer.register_forward_hook(
            lambda _, __, out, i=i: outputs.__setitem__(i, out[0] if isinstance(out, tuple) else out)
        )
    cache = transformers.DynamicCache(config=model.config)
    alone = logits_of(model, prompt, cache)
    found = {}
    for i, state in enumerate(cache.layers):
        found[f"prompt.layer{i}.out"] = outputs[i][-PROMPT:].numpy().reshape(PROMPT, -1).copy()
        if hasattr(state, "recurrent_states"):
            found[f"state.layer{i}.ssm"] = _only(state.recurrent_states)[0].numpy().copy()
            found[f"state.layer{i}.conv"] = _only(state.conv_states)[0, :, -3:].numpy().copy()
        else:
            found[f"state.layer{i}.k"], found[f"state.layer{i}.v"] = state.keys[0].numpy(), state.values[0].numpy()
    whole = logits_of(model, tokens)
    chosen, margins = greedy(model, prompt, GREEDY)
    near = np.flatnonzero(router_gaps(model, torch.tensor(prompt + chosen)[None])[0, PROMPT:] < CLEAR)
    n_clear = near[0] + 1 if len(near) else GREEDY
    chosen, margins = chosen[:n_clear], margins[:n_clear]
    steps = by_steps(model, tokens, PROMPT)
    found |= {"tokens": np.array(tokens, np.int32), "n_prompt": np.array(PROMPT, np.int32), "logits_tail": whole[-TAIL:]}
    found |= {"greedy": np.array(chosen, np.int32), "greedy_margin": np.array(margins, np.float32)}
    if any("ssm" in name for name in found):
        short = clear_tokens(model, rng, 6)
        found |= {"short.tokens": np.array(short, np.int32), "short.n_prompt": np.array(2, np.int32)}
        found |= {"short.logits": by_steps(model, short, 2)}
    noise = {"prompt_vs_steps": np.abs(whole - steps).max(), "prompt_alone_vs_whole": np.abs(whole[:PROMPT] - alone).max()}
    exact = {name: float(value) for name, value in noise.items()}
    gap = float(router_gaps(model, torch.tensor(tokens)[None]).min())
    return found, exact | {"logit_std": float(whole.std()), "greedy_margin": float(min(margins)), "router_gap": gap}


def _only(states):
    """The only state of a layer, which newer versions keep in a dictionary."""
    return next(iter(states.values())) if isinstance(states, dict) else states


def router_gaps(model, tokens):
    """Smallest difference of the last selected and the first rejected logit of an expert, for tokens (B, T): (B, T)."""
    gaps, used = [], model.config.num_experts_per_tok

    def measure(gate, given, _):
        logits = (given[0].reshape(*tokens.shape, -1) @ gate.weight.T).sort(descending=True).values
        gaps.append(logits[..., used - 1] - logits[..., used])

    hooks = [layer.mlp.gate.register_forward_hook(measure) for layer in model.model.layers]
    model(tokens, use_cache=False)
    for hook in hooks:
        hook.remove()
    return torch.stack(gaps).min(0).values


def clear_tokens(model, rng, n):
    """Random tokens for which no layer's router is near a tie, so that rounding selects the same experts."""
    tokens = torch.zeros(CANDIDATES, 0, dtype=torch.int64)
    for _ in range(n):
        tried = torch.from_numpy(rng.integers(0, 256 + MERGES, (CANDIDATES, 1)))
        tokens = torch.cat([tokens, tried], dim=1)
        tokens = tokens[router_gaps(model, tokens)[:, -1].argmax()].expand(CANDIDATES, -1)
    return tokens[0].tolist()


def save(name, setting, write_file, results, more=None):
    """Write the file, the results with what is known of their exactness, and info.json of a model."""
    folder, (found, exact) = FOLDER / name, results
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-Q8_0.gguf"
    write_file(path)
    np.savez_compressed(path.with_suffix(".npz"), **found)
    info = {
        "config": setting,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "exactness": exact,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
    (folder / "info.json").write_text(json.dumps(info | (more or {}), separators=(",", ":")) + "\n")
    print(name, exact, path.stat().st_size, path.with_suffix(".npz").stat().st_size)


@torch.no_grad()
def make(name):
    """Write file, results and info.json of a model."""
    setting = MODELS[name]
    config_class, model_class = (getattr(transformers, part) for part in CLASSES[setting["architecture"]])
    rope = {"rope_theta": setting["rope_theta"], "rope_type": "default"}
    if "partial_rotary_factor" in setting["config"]:
        rope["partial_rotary_factor"] = setting["config"]["partial_rotary_factor"]
    config = config_class(**setting["config"], rope_parameters=rope)
    config._attn_implementation = "eager"
    model = model_class(config).float().eval()
    tensors = initialise(model, setting["seed"])
    with_types = {"tensor_types": {at: type_of(at).name for at in tensors}}
    found = results(model, setting["seed"])
    save(name, setting, lambda path: write(path, name, setting, config, tensors), found, with_types)


if __name__ == "__main__":
    for wanted in sys.argv[1:] or MODELS:
        make(wanted)
