"""Groups of sizes in a `Config`, each read from metadata and checked."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dflash.errors import Unsupported
from dflash.model.gguf.architectures import Architecture
from dflash.model.gguf.keys import Keys

# Limits on sizes in metadata, far above those of published models: larger values are taken for a damaged file.
MAX_BLOCKS = 1024
MAX_WIDTH = 1 << 20
MAX_HEADS = 4096
MAX_HEAD_SIZE = 1024
MAX_EXPERTS = 1 << 16

MIN_YARN_BASE = 2.0
"""Smallest rotation base with YaRN, which divides by the base's logarithm; published models have 10,000 and more."""

MIN_YARN_BETA = 1e-6
"""Smallest ``beta_fast`` and ``beta_slow`` (turns) of YaRN, which divides by them; published models have 32 and 1."""

_RUNNABLE: dict[str, tuple[Any, ...]] = {
    "expert_gating_func": (0, 1),  # not given, softmax
    "expert_weights_norm": (True,),
    "expert_weights_scale": (0, 1),  # not given, none
    "attention.causal": (True,),
}
"""Keys that change the formulas of a model, and the values that dflash supports."""

_SIGMOID: dict[str, tuple[Any, ...]] = {
    "expert_gating_func": (2,),
    "expert_weights_norm": (True,),
    "router_logit_softcapping": (0,),
}
"""The same where experts are selected by a sigmoid, in an architecture whose experts have a scale."""


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Scaling of the rotary embedding to a longer context.

    kind: ``"linear"``, ``"yarn"``, or ``"llama3"``, which only drafts have: targets have their factors in a tensor.
    original_context: context length before scaling, in tokens.
    attn_factor: factor of cosine and sine with YaRN.
    ext_factor: another setting of YaRN.
    beta_fast, beta_slow: turns over the original context from which on a pair is unchanged, and up to which it is scaled.
    """

    kind: str
    factor: float
    original_context: int
    attn_factor: float
    ext_factor: float
    beta_fast: float
    beta_slow: float

    @classmethod
    def from_keys(cls, keys: Keys) -> "RopeScaling | None":
        """Read the scaling; None if the metadata has none.

        Converters write a model's own factor of cosine and sine as ``yarn_attn_factor``. Without it, the factor follows from
        that of the context, as in Transformers. ``attn_factor`` is on top of both.
        """
        name = next((name for name in ("rope.scaling.factor", "rope.scale_linear") if name in keys), None)
        kind = keys.text("rope.scaling.type", "linear" if name else "none")
        if kind == "none":
            return None
        if kind not in {"linear", "yarn"}:
            raise Unsupported(str(keys.wrong("rope.scaling.type", kind, "'none', 'linear' or 'yarn'")))
        min_beta = MIN_YARN_BETA if kind == "yarn" else 0
        factor = keys.number(name or "rope.scaling.factor", low=1, high=1e6)
        log_multiplier = keys.number("rope.scaling.yarn_log_multiplier", 0.0, low=0, high=1e6)
        usual = (1 + 0.1 * math.log(factor)) / (1 + 0.1 * log_multiplier * math.log(factor))
        return cls(
            kind=kind,
            factor=factor,
            original_context=keys.integer("rope.scaling.original_context_length", keys.integer("context_length")),
            attn_factor=keys.number("rope.scaling.yarn_attn_factor", usual, low=0, high=1e6)
            * keys.number("rope.scaling.attn_factor", 1.0, low=0, high=1e6),
            ext_factor=keys.number("rope.scaling.yarn_ext_factor", 1.0, low=-1, high=1e6),
            beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0, low=min_beta, high=1e6),
            beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0, low=min_beta, high=1e6),
        )

    @staticmethod
    def smallest_base(scaling: "RopeScaling | None") -> float:
        """Return the smallest rotation base for which the formulas of a scaling are defined."""
        return MIN_YARN_BASE if scaling is not None and scaling.kind == "yarn" else 1.0


def refuse_other_mathematics(keys: Keys, architecture: Architecture) -> None:
    """Raise `Unsupported` if a key selects a formula that dflash does not compute."""
    rules = _SIGMOID if architecture.sigmoid else _RUNNABLE
    for name, runnable in (rules | {"ssm.v_head_reordered": (not architecture.grouped,)}).items():
        value = keys.value(name, runnable[0])
        if isinstance(value, np.ndarray) or value not in runnable:
            raise Unsupported(str(keys.wrong(name, value, " or ".join(map(repr, runnable)))))


def recurrent_blocks(keys: Keys, architecture: Architecture, n_blocks: int, n_layers: int) -> tuple[bool, ...]:
    """Return for each block whether it is linear attention.

    A list of recurrent layers has priority over KV head counts of 0, and these over the interval, which is wrong in some
    files.
    """
    if not architecture.linear:
        return (False,) * n_blocks
    name = "attention.recurrent_layers"
    if name in keys:
        recurrent = tuple(map(bool, keys.per_block(name, n_blocks, high=1)))
    else:
        name = "attention.head_count_kv"
        recurrent = tuple(n == 0 for n in keys.per_block(name, n_blocks, high=MAX_HEADS))
        if not any(recurrent):
            interval = keys.integer("full_attention_interval", 4, high=MAX_BLOCKS)
            recurrent = tuple(i < n_layers and (i + 1) % interval != 0 for i in range(n_blocks))
    if any(recurrent[n_layers:]):
        raise keys.wrong(name, keys.value(name), f"one that makes the MTP blocks, {n_layers} and up, full attention")
    return recurrent


def attention_sizes(keys: Keys, architecture: Architecture, recurrent: tuple[bool, ...]) -> dict[str, Any]:
    """Return heads, head size and rotation of the attention layers."""
    full = [i for i, is_recurrent in enumerate(recurrent) if not is_recurrent]
    heads = _same(keys, "attention.head_count", full, len(recurrent), high=MAX_HEADS)
    kv_heads = heads
    if "attention.head_count_kv" in keys:
        kv_heads = _same(keys, "attention.head_count_kv", full, len(recurrent), high=MAX_HEADS)
    if heads % kv_heads:
        raise keys.wrong("attention.head_count", heads, f"a multiple of the {kv_heads} KV heads")
    head_size = _head_size(keys, heads)
    n_rot = keys.integer("rope.dimension_count", head_size, high=head_size)
    if n_rot % 2:
        raise keys.wrong("rope.dimension_count", n_rot, "even")
    scaling = RopeScaling.from_keys(keys)
    _refuse_window(keys)
    return {
        "heads": heads,
        "kv_heads": kv_heads,
        "head_size": head_size,
        "n_rot": n_rot,
        "rope_base": keys.number("rope.freq_base", 1e4, low=RopeScaling.smallest_base(scaling), high=1e12),
        "rope_sections": _sections(keys, n_rot) if architecture.sections else (),
        "rope_scaling": scaling,
    }


def delta_sizes(keys: Keys, architecture: Architecture) -> dict[str, Any]:
    """Return the sizes of linear attention; all 0 in an architecture without it."""
    if not architecture.linear:
        return dict.fromkeys(("delta_key_heads", "delta_value_heads", "delta_size", "conv_width"), 0)
    key_heads = keys.integer("ssm.group_count", high=MAX_HEADS)
    value_heads = keys.integer("ssm.time_step_rank", high=MAX_HEADS)
    size = keys.integer("ssm.state_size", high=MAX_HEAD_SIZE)
    inner = keys.integer("ssm.inner_size")
    if value_heads % key_heads:
        raise keys.wrong("ssm.time_step_rank", value_heads, f"a multiple of the {key_heads} key heads")
    if inner != value_heads * size:
        raise keys.wrong("ssm.inner_size", inner, f"{value_heads} value heads of {size}, {value_heads * size}")
    return {
        "delta_key_heads": key_heads,
        "delta_value_heads": value_heads,
        "delta_size": size,
        "conv_width": keys.integer("ssm.conv_kernel", low=2, high=64),
    }


def ffn_size(keys: Keys, architecture: Architecture, n_blocks: int) -> dict[str, Any]:
    """Return the inner size of the dense feed forward; 0 in an architecture with experts."""
    if architecture.experts:
        return {"ffn": 0}
    return {"ffn": _same(keys, "feed_forward_length", list(range(n_blocks)), n_blocks, high=MAX_WIDTH)}


def expert_sizes(keys: Keys, architecture: Architecture) -> dict[str, Any]:
    """Return number and sizes of the experts; all 0 in an architecture without them."""
    beside = architecture.beside and keys.integer("expert_count", 0, low=0, high=MAX_EXPERTS)
    if not architecture.experts and not beside:
        return dict.fromkeys(("experts", "experts_used", "expert_ffn", "shared_ffn"), 0)
    experts = keys.integer("expert_count", high=MAX_EXPERTS)
    return {
        "experts": experts,
        "experts_used": keys.integer("expert_used_count", high=experts),
        "expert_ffn": keys.integer(
            "feed_forward_length" if architecture.routed else "expert_feed_forward_length", high=MAX_WIDTH
        ),
        "expert_scale": keys.number("expert_weights_scale", low=0, high=1e6) if architecture.sigmoid else 1.0,
        "shared_ffn": keys.integer("expert_shared_feed_forward_length", high=MAX_WIDTH) if architecture.shared else 0,
    }


def _same(keys: Keys, name: str, blocks: list[int], n_blocks: int, *, high: int) -> int:
    """Read a number that a file may give per block; it must be the same for all of `blocks`."""
    values = keys.per_block(name, n_blocks, high=high)
    found = {values[i] for i in blocks} or {max(values)}
    if min(found) < 1:
        raise keys.wrong(name, keys.value(name), "at least 1 where it is used")
    if len(found) > 1:
        raise Unsupported(str(keys.wrong(name, keys.value(name), "the same in every block that uses it")))
    return found.pop()


def _refuse_window(keys: Keys) -> None:
    """Raise `Unsupported` if layers attend to the last tokens only: just architectures whose layers differ have windows."""
    name, context = "attention.sliding_window", keys.integer("context_length")
    window = keys.integer(name, 0, low=0)
    if 0 < window < context:
        raise Unsupported(str(keys.wrong(name, window, f"0 or at least the context length {context} in this architecture")))


def _head_size(keys: Keys, heads: int) -> int:
    size = keys.integer("attention.key_length", None, high=MAX_HEAD_SIZE)
    if size is None:
        width = keys.integer("embedding_length", high=MAX_WIDTH)
        if width % heads:
            raise keys.wrong("attention.head_count", heads, f"a divisor of the width {width}")
        size = width // heads
    value_size = keys.integer("attention.value_length", size, high=MAX_HEAD_SIZE)
    if value_size != size:
        raise Unsupported(str(keys.wrong("attention.value_length", value_size, f"{size} as for keys")))
    return size


def _sections(keys: Keys, n_rot: int) -> tuple[int, ...]:
    name = "rope.dimension_sections"
    if name not in keys and "mrope_sections" in keys:
        name = "mrope_sections"
    sections = keys.integers(name)
    if len(sections) not in {3, 4} or 2 * sum(sections) != n_rot:
        raise keys.wrong(name, sections, f"3 or 4 numbers that sum to {n_rot // 2}, half the rotated dimensions")
    return (*sections, 0)[:4]
