"""MTP heads as speculators holds them."""

from pathlib import Path
from typing import Any

import numpy as np

from dflash.errors import Unsupported
from dflash.model.config import Config
from dflash.model.draft.files.folder import LAYER
from dflash.model.draft.files.open_draft import PARTS, settings_of
from dflash.model.draft.files.safetensors import SIZES, Entry
from dflash.model.export.settings import Settings
from dflash.model.gguf.file import GGUFFile
from dflash.model.loading.mtp_folder import MODEL_TYPES, NAMES, entries_of, is_mtp
from dflash.model.weights import Weights

_PUBLISHED = {canonical: f"mtp_layers.0.{name}" for name, canonical in NAMES.items()}


def holds_mtp(path: Path) -> bool:
    """Return True if a folder, or a file in one, holds an MTP head, or a GGUF file is that of a model."""
    if path.is_dir() or path.suffix in PARTS:
        return is_mtp(settings_of(path))
    with GGUFFile.open(path) as file:
        return file.metadata.get("general.architecture") in MODEL_TYPES


def mtp_of(path: Path) -> tuple[Settings, dict[str, Entry]]:
    """Return the settings and tensors of an MTP head in the layout of speculators."""
    if path.is_dir() or path.suffix in PARTS:
        folder = path if path.is_dir() else path.parent
        settings, entries = settings_of(path), entries_of(folder)
        layer = settings.get(LAYER) or settings.get("text_config", settings)
    else:
        with GGUFFile.open(path) as file:
            config = Config.from_gguf(file.metadata, file.tensors)
            if not config.n_mtp:
                raise Unsupported("holds no MTP block", path=path)
            layer, entries = _layer(config), _stored(file, config)
    if not entries:
        raise Unsupported("holds no MTP block", path=path)
    about = {
        "architectures": ["MTPDraftModel"],
        "speculators_model_type": "mtp",
        "num_nextn_predict_layers": 1,
        LAYER: layer,
    }
    return about, {_PUBLISHED[name]: entry for name, entry in entries.items()}


def _stored(file: GGUFFile, config: Config) -> dict[str, Entry]:
    """Return the tensors of the block by canonical name; norms lose the 1 that a GGUF file adds, which is exact."""
    weights = Weights(file, config, trunk=False).block(config.n_layers)
    prefix, found = f"blk.{config.n_layers}.", dict[str, Entry]()
    for tensor in weights.tensors:
        name = tensor.name.removeprefix(prefix)
        if not tensor.name.startswith(prefix) or name.startswith(("nextn.embed", "nextn.shared_head_head", "ffn_up_exps")):
            continue
        if tensor.type not in SIZES:
            raise Unsupported(
                f"export: tensor {tensor.name!r} is {tensor.type}, safetensors can't hold it: take an unquantized file"
            )
        if len(tensor.shape) == 1 and name != "ffn_gate_inp_shexp.weight":
            values = (weights.vector(name) - np.float32(1)).astype("<f4")
            found[name] = Entry(values.shape, "F32", values.view(np.uint8))
        elif name == "ffn_gate_exps.weight":
            both = [weights.matrix(f"ffn_{part}_exps.weight").data for part in ("gate", "up")]
            n, rows, width = tensor.shape
            found["ffn_gate_up_exps.weight"] = Entry((n, 2 * rows, width), tensor.type, np.concatenate(both, axis=1))
        else:
            shape = tensor.shape if len(tensor.shape) > 1 else (1, *tensor.shape)
            found[name] = Entry(shape, tensor.type, weights.matrix(name).data)
    return found


def _layer(config: Config) -> Settings:
    """Return the settings of the block as those of a Qwen3.5 model of one layer."""
    if config.architecture not in MODEL_TYPES:
        raise Unsupported(f"export: MTP heads of {config.architecture} are not written, only of {', '.join(MODEL_TYPES)}")
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_base}
    rope |= {"partial_rotary_factor": config.n_rot / config.head_size, "mrope_section": list(config.rope_sections[:3])}
    layer: Settings = {
        "model_type": MODEL_TYPES[config.architecture],
        "vocab_size": config.n_vocab,
        "hidden_size": config.width,
        "num_hidden_layers": 1,
        "layer_types": ["full_attention"],
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_size,
        "rms_norm_eps": config.norm_eps,
        "hidden_act": "silu",
        "attention_bias": False,
        "max_position_embeddings": config.context,
        "rope_parameters": rope | {"mrope_interleaved": True},
    }
    if config.experts:
        layer |= {"num_experts": config.experts, "num_experts_per_tok": config.experts_used}
        layer |= {"moe_intermediate_size": config.expert_ffn, "shared_expert_intermediate_size": config.shared_ffn}
    else:
        layer["intermediate_size"] = config.ffn
    return layer
