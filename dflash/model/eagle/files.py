"""EAGLE-3 heads in folders of ``config.json`` and safetensors files, as SpecForge and speculators write them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from dflash.errors import FormatError, Unsupported
from dflash.model.config_sizes import MAX_BLOCKS, MAX_WIDTH, RopeScaling
from dflash.model.draft.files.folder import LAYER, JsonKeys, refuse_other_layers, rope_keys, rope_scaling, slides
from dflash.model.draft.files.gguf_dialects import MAX_HEAD_SIZE, MAX_HEADS
from dflash.model.draft.files.names import Shapes, match_shapes
from dflash.model.draft.files.open_draft import PARTS, settings_of
from dflash.model.draft.files.source import Source
from dflash.model.eagle.config import EagleConfig

CLASSES = ("LlamaForCausalLMEagle3", "Eagle3Speculator", "Eagle3DraftModel")
"""Class names in ``config.json``: SpecForge's, and those of speculators."""

OPTIONAL = ("token_embd.weight", "output.weight", "d2t")
_NOT_NEEDED = ("t2d", "verifier_lm_head.weight", "verifier_norm.weight")
"""Tensors that are ignored: the inverse of ``d2t``, and copies of the target's for training."""


def is_eagle(path: Path) -> bool:
    """Return True if a folder, or a file in one, is an EAGLE-3 head."""
    return (path.is_dir() or path.suffix in PARTS) and _class(settings_of(path)) in CLASSES


def open_eagle(path: Path) -> tuple[EagleConfig, Source]:
    """Open a head and read its configuration; no weight is read."""
    if not (path.is_dir() or path.suffix in PARTS):
        raise Unsupported("an EAGLE-3 head is a folder with a config.json and safetensors files", path=path)
    settings = settings_of(path)
    if _class(settings) not in CLASSES:
        raise Unsupported(f"config.json is of {_class(settings)!r:.60}, which is no EAGLE-3 head: {', '.join(CLASSES)}")
    source = Source.of_folder(path if path.is_dir() else path.parent)
    return config_of(settings, source.shapes), source


def config_of(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> EagleConfig:
    """Read the configuration of a head from ``config.json`` and the shapes of its tensors by canonical name."""
    top = JsonKeys(config)
    exported = LAYER in top
    keys = JsonKeys(config, top.object(LAYER), top.object("eagle_config"))
    n_layers = keys.integer("num_hidden_layers", 1, high=MAX_BLOCKS)
    if n_layers != 1:
        raise Unsupported(f"EAGLE-3 heads of {n_layers} layers are not run, only of one")
    refuse_other_layers(keys)
    if any(slides(keys, n_layers)):
        raise Unsupported("EAGLE-3 heads with a sliding window are not run")
    heads, width = keys.integer("num_attention_heads", high=MAX_HEADS), keys.integer("hidden_size", high=MAX_WIDTH)
    head_size = keys.integer("head_dim", max(width // heads, 1), high=MAX_HEAD_SIZE)
    rope, scaling = rope_keys(keys), rope_scaling(keys)
    share = rope.number("partial_rotary_factor", keys.number("partial_rotary_factor", 1.0, low=0, high=1), low=0, high=1)
    return EagleConfig(
        width=width,
        target_width=keys.integer("target_hidden_size", width, high=MAX_WIDTH),
        ffn=keys.integer("intermediate_size", high=MAX_WIDTH),
        heads=heads,
        kv_heads=keys.integer("num_key_value_heads", heads, high=MAX_HEADS),
        head_size=head_size,
        head_norms="blk.0.attn_q_norm.weight" in shapes,
        n_rot=int(head_size * share) // 2 * 2,
        rope_base=rope.number("rope_theta", 10000.0, low=RopeScaling.smallest_base(scaling), high=1e12),
        rope_scaling=scaling,
        n_vocab=keys.integer("vocab_size", 0),
        norm_eps=keys.number("rms_norm_eps", low=0, high=1),
        target_layer_ids=_layer_ids(keys, exported=exported),
        feature_norm=_feature_norm(keys),
        normed_residual=bool(keys.flag("norm_before_residual", default=False)),
        normed_output=bool(keys.flag("norm_output", default=False)),
    )


def check_tensors(config: EagleConfig, found: Mapping[str, tuple[int, ...]]) -> None:
    """Check that a file holds every tensor of a head that was fitted to its target, and no unknown one."""
    n_head = found["output.weight"][0] if "output.weight" in found else config.n_vocab
    if n_head != config.n_vocab and "d2t" not in found:
        raise FormatError(f"the head drafts {n_head} of {config.n_vocab} tokens, but has no 'd2t' that says which")
    if "d2t" in found and "output.weight" not in found:
        raise FormatError("the head maps tokens of its own by 'd2t', but has no 'lm_head.weight'")
    match_shapes(found, expected(config, n_head), what="EAGLE-3 head", optional=OPTIONAL, ignored=_NOT_NEEDED)


def expected(config: EagleConfig, n_head: int) -> Shapes:
    """Return every tensor that a head needs or may have, as NumPy shapes by canonical name.

    n_head: rows of the LM head, fewer than the target's if there is a ``d2t``.
    """
    h, q, kv = config.width, config.heads * config.head_size, config.kv_heads * config.head_size
    n = len(config.target_layer_ids)
    shapes: Shapes = {
        "fc.weight": (h, n * config.target_width),
        "output_norm.weight": (h,),
        "token_embd.weight": (config.n_vocab, h),
        "output.weight": (n_head, h),
        "d2t": (n_head,),
    }
    if config.feature_norm == "whole":
        shapes["input_norm.weight"] = (n * config.target_width,)
    elif config.feature_norm == "layers":
        shapes |= {f"fc_norm.{i}.weight": (config.target_width,) for i in range(n)}
    block: Shapes = {
        "attn_norm.weight": (h,),
        "hidden_norm.weight": (h,),
        "ffn_norm.weight": (h,),
        "attn_q.weight": (q, 2 * h),
        "attn_k.weight": (kv, 2 * h),
        "attn_v.weight": (kv, 2 * h),
        "attn_output.weight": (h, q),
        "ffn_gate.weight": (config.ffn, h),
        "ffn_up.weight": (config.ffn, h),
        "ffn_down.weight": (h, config.ffn),
    }
    if config.head_norms:
        block |= {"attn_q_norm.weight": (config.head_size,), "attn_k_norm.weight": (config.head_size,)}
    return shapes | {f"blk.0.{name}": shape for name, shape in block.items()}


def _class(settings: Mapping[str, Any]) -> str:
    names = settings.get("architectures")
    name = names[0] if isinstance(names, list) and names else names
    return CLASSES[1] if settings.get("speculators_model_type") == "eagle3" else str(name)


def _layer_ids(keys: JsonKeys, *, exported: bool) -> tuple[int, ...]:
    """Return the layers whose outputs the head reads. Configurations of speculators count inputs of layers."""
    first = 1 if exported else 0
    given = keys.integers("eagle_aux_hidden_state_layer_ids", (), low=first, high=MAX_BLOCKS)
    return tuple(layer - first for layer in given)


def _feature_norm(keys: JsonKeys) -> Literal["none", "whole", "layers"]:
    whole, layers = (keys.flag(name, default=False) for name in ("norm_before_fc", "fc_norm"))
    if whole and layers:
        raise FormatError("keys 'config.norm_before_fc' and 'config.fc_norm' are both true, at most one may be")
    return "whole" if whole else "layers" if layers else "none"
