"""MTP heads in folders of safetensors: those of speculators, and whole checkpoints that hold one."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash.errors import FormatError, Unsupported
from dflash.kernels.formats import Matrix
from dflash.model.config import Config
from dflash.model.draft.files.folder import LAYER
from dflash.model.draft.files.names import match_shapes
from dflash.model.draft.files.open_draft import settings_of
from dflash.model.draft.files.safetensors import Entry, open_folder
from dflash.model.gguf.floats import FLOATS, to_float32
from dflash.model.gguf.tensor_check import expected_tensors

MODEL_TYPES = {"qwen35": "qwen3_5_text", "qwen35moe": "qwen3_5_moe_text"}
"""Architectures whose heads are read and written, and their names in a ``config.json``."""

_PREFIXES = ("mtp_layers.0.", "mtp.layers.0.", "mtp.")
_NATIVE = {
    "fc.weight": "input_proj.weight",
    "norm.weight": "final_layernorm.weight",
    "pre_fc_norm_hidden.weight": "hidden_layernorm.weight",
    "pre_fc_norm_embedding.weight": "token_layernorm.weight",
}
"""Names that speculators changes."""

NAMES = {
    "input_proj.weight": "nextn.eh_proj.weight",
    "token_layernorm.weight": "nextn.enorm.weight",
    "hidden_layernorm.weight": "nextn.hnorm.weight",
    "final_layernorm.weight": "nextn.shared_head_norm.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    **{f"self_attn.{part}_proj.weight": f"attn_{part}.weight" for part in "qkv"},
    **{f"self_attn.{part}_norm.weight": f"attn_{part}_norm.weight" for part in "qk"},
    **{f"mlp.{part}_proj.weight": f"ffn_{part}.weight" for part in ("gate", "up", "down")},
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
    **{f"mlp.shared_expert.{part}_proj.weight": f"ffn_{part}_shexp.weight" for part in ("gate", "up", "down")},
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
}
"""Names of the block's tensors in a GGUF file by those of speculators."""


def is_mtp(settings: Mapping[str, Any]) -> bool:
    """Return True if a ``config.json`` is of an MTP head of speculators, or of a model whose checkpoint may hold one."""
    model = settings.get("text_config", settings)
    return settings.get("speculators_model_type") == "mtp" or model.get("model_type") in MODEL_TYPES.values()


class MtpFolder:
    """Tensors of an MTP head, by the names of the block in a GGUF file.

    Norms are ``1 + w``, as in a GGUF file, where the folder holds `w`.
    """

    def __init__(self, folder: Path, config: Config) -> None:
        """Open the head of a trunk with this configuration; raise if it is for another one."""
        settings = settings_of(folder)
        if config.architecture not in MODEL_TYPES:
            raise Unsupported(
                f"MTP heads in folders are not run for {config.architecture}, only for {', '.join(MODEL_TYPES)}"
            )
        if not is_mtp(settings):
            raise Unsupported("the folder holds no MTP head: its config.json is of another model", path=folder)
        width = (settings.get(LAYER) or settings.get("text_config", settings)).get("hidden_size")
        if width != config.width:
            raise Unsupported(
                f"its MTP block is for another model: its width is {width}, the model's {config.width}", path=folder
            )
        self.entries = entries_of(folder)
        block = f"blk.{config.n_layers}."
        found = {block + name: entry.shape for name, entry in self.entries.items()}
        want = expected_tensors(replace(config, n_mtp=1), found.keys())
        want = {name: shape for name, shape in want.items() if name.startswith(block)}
        match_shapes(found, want, what="MTP head", optional=(), ignored=())

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def matrix(self, name: str) -> Matrix:
        """Return a matrix, or a stack of matrices; see `HostTensors.matrix`."""
        part = ("ffn_gate_exps.weight", "ffn_up_exps.weight").index(name) if name not in self.entries else None
        entry = self.entries[name if part is None else "ffn_gate_up_exps.weight"]
        matrix = Matrix(entry.data.reshape(*(entry.shape[:-1] or (1,)), -1), entry.type, name)
        if part is None:
            return matrix
        n = entry.shape[1] // 2
        return matrix.rows(slice(part * n, (part + 1) * n))

    def vector(self, name: str) -> NDArray[np.float32]:
        """Return a norm as a gain; see `HostTensors.vector`."""
        entry = self.entries[name]
        if entry.type not in FLOATS:
            raise FormatError(f"tensor {name!r} is {entry.type}, must be one of {', '.join(FLOATS)}")
        return to_float32(entry.data, entry.type).reshape(entry.shape) + np.float32(1)


def entries_of(folder: Path) -> dict[str, Entry]:
    """Return the tensors of the head in a folder, by the names of the block in a GGUF file; others are left out."""
    found = {}
    for file in open_folder(folder):
        for name, entry in file.tensors.items():
            prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), None)
            if prefix is None:
                continue
            short = name.removeprefix(prefix)
            short = _NATIVE.get(short, short)
            if short not in NAMES:
                raise FormatError(f"the MTP head has a tensor {name!r:.80}, which dflash does not know", path=folder)
            found[NAMES[short]] = entry
    return found
