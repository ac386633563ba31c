"""The ``config.json`` of drafts and heads, in the layouts of their authors and of speculators."""

from collections.abc import Mapping, Sequence
from typing import Any

from dflash.errors import Unsupported
from dflash.model.config_sizes import RopeScaling
from dflash.model.draft.config import DraftConfig
from dflash.model.draft.files.folder import KINDS, LAYER
from dflash.model.eagle.config import EagleConfig

Settings = dict[str, Any]


def of_draft(config: DraftConfig, *, nested: bool, context: int) -> Settings:
    """Return the settings of a block draft, as Z Lab publishes them, or `nested` as speculators does."""
    layer = _layer(config, context) | {"num_hidden_layers": config.n_layers, "vocab_size": config.n_vocab}
    layer |= _windows(config.windows)
    slides = tuple(window > 0 for window in config.windows)
    causal: Settings = {} if config.causal == slides else {"is_causal": any(config.causal)}
    if causal and len(set(config.causal)) > 1:
        raise Unsupported(f"export: layers attend inside a block as {config.causal}, which config.json can't say")
    if nested and causal and any(config.causal):
        raise Unsupported("export: full attention that is causal inside a block is not of the layout of speculators")
    own: Settings = {"block_size": config.block}
    if config.from_anchor or config.kind == "dspark":
        own["sample_from_anchor"] = config.from_anchor
    scales = {"output_multiplier": config.logit_scale, "input_embedding_scale": config.embed_scale}
    own |= {name: value for name, value in scales.items() if value != 1}
    own |= {"final_logit_softcapping": config.logit_cap} if config.logit_cap else {}
    if nested and len(own) > 1 + ("sample_from_anchor" in own):
        raise Unsupported(f"export: {', '.join(own)}: scales of logits and embeddings are not of the layout of speculators")
    second: Settings = {}
    if config.kind == "dflash2":
        second = {"conv_kernel_size": config.conv_width, "conv_group_size": config.conv_group}
        second |= {"selector_rank": config.selector_rank, "selector_top_k": config.selector_top}
    elif config.kind == "dspark":
        own |= {"markov_rank": config.markov_rank, "markov_head_type": "vanilla"}
        own |= {"enable_confidence_head": config.has_confidence}
    name = next(name for name, kind in KINDS.items() if kind == config.kind)
    if nested:
        own |= second | {"aux_hidden_state_layer_ids": _inputs(config.target_layer_ids), "mask_token_id": config.mask}
        own["sliding_window_non_causal"] = not any(config.causal) and any(slides)
        return {"architectures": [name], "speculators_model_type": config.kind, LAYER: layer | {"model_type": "qwen3"}} | own
    inner = {"mask_token_id": config.mask, "target_layer_ids": list(config.target_layer_ids)} | second
    return {"architectures": [name], "model_type": "qwen3"} | layer | own | causal | {"dflash_config": inner}


def of_eagle(config: EagleConfig, *, nested: bool, context: int, n_head: int) -> Settings:
    """Return the settings of an EAGLE-3 head, as SpecForge writes them, or `nested` as speculators does."""
    layer = _layer(config, context) | {"num_hidden_layers": 1, "vocab_size": config.n_vocab}
    layer["model_type"] = "qwen3" if config.head_norms else "llama"
    if config.n_rot < config.head_size:
        layer["partial_rotary_factor"] = config.n_rot / config.head_size
    own: Settings = {
        "draft_vocab_size": n_head,
        "norm_before_residual": config.normed_residual,
        "norm_before_fc": config.feature_norm == "whole",
        "fc_norm": config.feature_norm == "layers",
        "norm_output": config.normed_output,
    }
    if config.target_width != config.width:
        own["target_hidden_size"] = config.target_width
    key, ids = "eagle_aux_hidden_state_layer_ids", config.target_layer_ids
    if nested:
        own |= {key: _inputs(ids)} if ids else {}
        return {"architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3", LAYER: layer} | own
    eagle = {"use_aux_hidden_state": True} | ({key: list(ids)} if ids else {})
    return {"architectures": ["LlamaForCausalLMEagle3"]} | layer | own | {"eagle_config": eagle}


def speculators_config(kind: str, n_draft: int, target: str | None) -> Settings:
    """Return the part of a configuration of speculators that names the target and how many tokens are drafted."""
    method = {"proposal_type": "greedy", "speculative_tokens": n_draft, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    return {
        "algorithm": kind,
        "default_proposal_method": "greedy",
        "proposal_methods": [method],
        "verifier": {"name_or_path": target, "architectures": []},
    }


def _inputs(layer_ids: Sequence[int]) -> list[int]:
    """Return numbers of layers whose inputs are the outputs of these."""
    return [layer + 1 for layer in layer_ids]


def _layer(config: DraftConfig | EagleConfig, context: int) -> Settings:
    return {
        "hidden_size": config.width,
        "intermediate_size": config.ffn,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_size,
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": context,
        "rope_theta": config.rope_base,
        "rope_scaling": _scaling(config.rope_scaling),
        "tie_word_embeddings": False,
    }


def _scaling(scaling: RopeScaling | None) -> Mapping[str, Any] | None:
    if scaling is None:
        return None
    settings: Settings = {"rope_type": scaling.kind, "factor": scaling.factor}
    settings["original_max_position_embeddings"] = scaling.original_context
    if scaling.kind == "llama3":
        return settings | {"high_freq_factor": scaling.beta_fast, "low_freq_factor": scaling.beta_slow}
    if scaling.kind == "yarn":
        if scaling.ext_factor != 1:
            raise Unsupported(f"export: YaRN with an extrapolation factor of {scaling.ext_factor} is not of the layout")
        settings |= {"attention_factor": scaling.attn_factor, "beta_fast": scaling.beta_fast}
        settings["beta_slow"] = scaling.beta_slow
    return settings


def _windows(windows: tuple[int, ...]) -> Settings:
    sizes = {window for window in windows if window}
    if len(sizes) > 1:
        raise Unsupported(f"export: windows of {sorted(sizes)} positions, but config.json holds one size")
    types = ["sliding_attention" if window else "full_attention" for window in windows]
    return {"layer_types": types, "use_sliding_window": bool(sizes), "sliding_window": sizes.pop() if sizes else None}
