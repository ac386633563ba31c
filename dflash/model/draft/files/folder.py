"""Draft models in the layout of Hugging Face: a folder with ``config.json`` and safetensors files."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dflash.errors import FormatError, Unsupported
from dflash.model.config_sizes import MAX_BLOCKS, MAX_WIDTH, MIN_YARN_BETA, RopeScaling
from dflash.model.draft.config import DraftConfig, default_target_layer_ids
from dflash.model.draft.files.gguf_dialects import MAX_CONV, MAX_HEAD_SIZE, MAX_HEADS, MAX_RANK, MAX_TOP, refuse_lilicorr
from dflash.model.gguf.keys import Keys

KINDS = {
    "DFlashDraftModel": "dflash",
    "DFlash2DraftModel": "dflash2",
    "DSparkDraftModel": "dspark",
    "DFlashSpeculator": "dflash",
    "DSparkSpeculator": "dspark",
}
"""Kind of draft by class name."""

LAYER = "transformer_layer_config"
"""Key of the sizes of a layer, which only configurations of speculators have. They count inputs of layers of the target, the
others count outputs."""

_SLIDING, _FULL = "sliding_attention", "full_attention"


class JsonKeys(Keys):
    """Keys of a ``config.json``, looked up in several objects in turn; null counts as absent."""

    def __init__(self, *places: Mapping[str, Any]) -> None:
        super().__init__({}, "config")
        self._places = places

    def __contains__(self, name: str) -> bool:
        return any(place.get(name) is not None for place in self._places)

    def value(self, name: str, *default: Any) -> Any:
        """Return a value as `Keys.value` does, and arrays of whole numbers as NumPy arrays."""
        for place in self._places:
            value = place.get(name)
            if isinstance(value, list) and value and all(type(item) is int and abs(item) < 1 << 62 for item in value):
                return np.array(value)
            if value is not None:
                return value
        return super().value(name, *default)

    def object(self, name: str) -> Mapping[str, Any]:
        """Return an object, empty if there is none."""
        value = self.value(name, {})
        if not isinstance(value, dict):
            raise self.wrong(name, value, "an object")
        return value


def config_of(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> DraftConfig:
    """Read the configuration of a draft model from ``config.json`` and the shapes of its tensors by canonical name."""
    top = JsonKeys(config)
    kind = _kind(top)
    inner = top.object("dflash_config")
    refuse_lilicorr({**config, **inner})
    exported = LAYER in top
    keys = JsonKeys(inner, config, top.object(LAYER))
    refuse_other_layers(keys)
    _refuse_other_heads(keys)
    n_layers = keys.integer("num_hidden_layers", high=MAX_BLOCKS)
    heads, width = keys.integer("num_attention_heads", high=MAX_HEADS), keys.integer("hidden_size", high=MAX_WIDTH)
    sliding = slides(keys, n_layers)
    windows = _windows(keys, sliding)
    scaling = rope_scaling(keys)
    return DraftConfig(
        kind=kind,
        width=width,
        ffn=keys.integer("intermediate_size", high=MAX_WIDTH),
        n_layers=n_layers,
        heads=heads,
        kv_heads=keys.integer("num_key_value_heads", heads, high=MAX_HEADS),
        head_size=keys.integer("head_dim", max(width // heads, 1), high=MAX_HEAD_SIZE),
        n_vocab=keys.integer("vocab_size", 0),
        norm_eps=keys.number("rms_norm_eps", low=0, high=1),
        rope_base=rope_keys(keys).number("rope_theta", low=RopeScaling.smallest_base(scaling), high=1e12),
        rope_scaling=scaling,
        block=keys.integer("block_size", 16, high=1 << 16),
        mask=keys.integer("mask_token_id", low=0),
        target_layer_ids=_taps(keys, n_layers, exported=exported),
        windows=windows,
        causal=_causal(keys, sliding),
        logit_scale=keys.number("output_multiplier", 1.0, low=-1e6, high=1e6),
        logit_cap=keys.number("final_logit_softcapping", 0.0, low=0, high=1e9),
        embed_scale=keys.number("input_embedding_scale", 1.0, low=-1e6, high=1e6),
        **_extras(keys, kind, shapes),
    )


def _kind(top: JsonKeys) -> str:
    names = top.value("architectures")
    name = names[0] if isinstance(names, list) and names else names
    if isinstance(name, str) and "eagle" in name.lower():
        raise Unsupported("config.json is of an EAGLE-3 head: use it with eagle3 or eagle3-tree")
    if not isinstance(name, str) or name not in KINDS:
        raise Unsupported(f"config.json is of {name!r:.60}, which is no draft that dflash runs: {', '.join(KINDS)}")
    return KINDS[name]


def refuse_other_layers(keys: JsonKeys) -> None:
    """Raise `Unsupported` if layers have biases or another activation than SiLU."""
    if keys.flag("attention_bias", default=False):
        raise Unsupported("drafts with biases (attention_bias) are not run")
    act = keys.text("hidden_act", "silu")
    if act not in {"silu", "swish"}:
        raise Unsupported(f"drafts with activation {act!r:.40} are not run, only silu")


def _refuse_other_heads(keys: JsonKeys) -> None:
    head = keys.text("markov_head_type", "vanilla")
    if head != "vanilla":
        raise Unsupported(f"DSpark drafts with a {head!r:.40} Markov head are not run, only 'vanilla'")


def slides(keys: JsonKeys, n_layers: int) -> tuple[bool, ...]:
    """Return for each layer whether it has a sliding window."""
    types = keys.value("layer_types", [_FULL] * n_layers)
    if not isinstance(types, list) or len(types) != n_layers or any(kind not in (_SLIDING, _FULL) for kind in types):
        raise keys.wrong("layer_types", types, f"{n_layers} of {_SLIDING!r} and {_FULL!r}")
    if keys.flag("use_swa", default=False) and _SLIDING not in types:
        return (True,) * n_layers
    return tuple(kind == _SLIDING for kind in types)


def _windows(keys: JsonKeys, sliding: tuple[bool, ...]) -> tuple[int, ...]:
    if not any(sliding) or not keys.flag("use_sliding_window", default=True):
        return (0,) * len(sliding)
    name = "swa_window_size" if "sliding_window" not in keys and "swa_window_size" in keys else "sliding_window"
    window = keys.integer(name)
    return tuple(window if slide else 0 for slide in sliding)


def _causal(keys: JsonKeys, sliding: tuple[bool, ...]) -> tuple[bool, ...]:
    given = keys.flag("is_causal", default=keys.flag("causal", default=None))
    if given is None and keys.flag("sliding_window_non_causal", default=False):
        given = False
    return sliding if given is None else (given,) * len(sliding)


def _taps(keys: JsonKeys, n_layers: int, *, exported: bool) -> tuple[int, ...]:
    if exported:
        return tuple(tap - 1 for tap in keys.integers("aux_hidden_state_layer_ids", low=1, high=MAX_BLOCKS))
    if "target_layer_ids" not in keys:
        return default_target_layer_ids(n_layers, keys.integer("num_target_layers", high=MAX_BLOCKS))
    return keys.integers("target_layer_ids", high=MAX_BLOCKS)


def rope_keys(keys: JsonKeys) -> JsonKeys:
    """Return the settings of the rotary embedding."""
    return JsonKeys(keys.object("rope_parameters"), {"rope_theta": keys.value("rope_theta", None)})


def rope_scaling(keys: JsonKeys) -> RopeScaling | None:
    """Read the rotary scaling as Hugging Face configurations store it."""
    rope = JsonKeys(keys.object("rope_scaling"), keys.object("rope_parameters"))
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind in {"default", "mrope"}:  # sections of positions differ for images only
        return None
    if kind not in {"linear", "yarn", "llama3"}:
        raise Unsupported(str(rope.wrong("rope_type", kind, "'default', 'linear', 'yarn' or 'llama3'")))
    factor = rope.number("factor", low=1, high=1e6)
    min_beta = MIN_YARN_BETA if kind == "yarn" else 0
    original = rope.integer("original_max_position_embeddings", None)
    fast, slow = ("high_freq_factor", "low_freq_factor") if kind == "llama3" else ("beta_fast", "beta_slow")
    scaling = RopeScaling(
        kind=kind,
        factor=factor,
        original_context=keys.integer("max_position_embeddings") if original is None else original,
        attn_factor=rope.number("attention_factor", 1 + 0.1 * math.log(factor), low=0, high=1e6),
        ext_factor=1.0,
        beta_fast=rope.number(fast, 4.0 if kind == "llama3" else 32.0, low=min_beta, high=1e6),
        beta_slow=rope.number(slow, 1.0, low=min_beta, high=1e6),
    )
    if kind == "llama3" and scaling.beta_fast <= scaling.beta_slow:
        raise rope.wrong(fast, scaling.beta_fast, f"more than {slow}, {scaling.beta_slow:g}")
    return scaling


def _extras(keys: JsonKeys, kind: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    if kind == "dflash2":
        return {
            "conv_width": keys.integer("conv_kernel_size", 2, high=MAX_CONV),
            "conv_group": keys.integer("conv_group_size", 16, high=MAX_WIDTH),
            "selector_rank": keys.integer("selector_rank", 256, high=MAX_RANK),
            "selector_top": keys.integer("selector_top_k", 16, high=MAX_TOP),
        }
    if kind == "dspark":
        if "markov_w1.weight" not in shapes:
            raise FormatError("config.json is of a DSpark draft, but there is no tensor 'markov_head.markov_w1.weight'")
        return {
            "markov_rank": keys.integer("markov_rank", shapes["markov_w1.weight"][-1], high=MAX_RANK),
            "from_anchor": bool(keys.flag("sample_from_anchor", default=True)),
            "has_confidence": bool(keys.flag("enable_confidence_head", default="conf_proj.weight" in shapes)),
        }
    return {"from_anchor": bool(keys.flag("sample_from_anchor", default=False))}
