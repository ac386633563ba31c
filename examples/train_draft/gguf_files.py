"""Write drafts as GGUF files that `dflash` and llama.cpp read. Needs no torch."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from dflash.model.draft.config import DraftConfig

_OF_TRUNK = "token_embd.weight", "output.weight", "output_norm.weight"
"""Tensors of the trunk that the file of an MTP head holds, too."""

Weights = Mapping[str, NDArray[np.float32]]


def write_draft(path: str | PathLike[str], config: DraftConfig, weights: Weights, *, kind: str = "F16") -> Path:
    """Write a DFlash draft in llama.cpp's mainline form.

    Parameters
    ----------
    path : str or path
    config : DraftConfig
        Of kind ``dflash``.
    weights : Mapping of str to float32
        Every tensor of `dflash.model.draft.files.names.expected` but the embedding and the LM head, which are the target's.
    kind : str
        Type of the matrices, as ``"Q8_0"``.

    Returns
    -------
    Path
        The file.
    """
    writer = gguf.GGUFWriter(path, "dflash")
    writer.add_name("DFlash draft")
    writer.add_block_count(config.n_layers)
    writer.add_context_length(4096)
    writer.add_embedding_length(config.width)
    writer.add_feed_forward_length(config.ffn)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_size)
    writer.add_value_length(config.head_size)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope_base)
    writer.add_sliding_window(max(config.windows))
    writer.add_array("dflash.attention.sliding_window_pattern", [window > 0 for window in config.windows])
    writer.add_uint32("dflash.block_size", config.block)
    writer.add_array("dflash.target_layers", [layer + 1 for layer in config.target_layer_ids])  # counts inputs of layers
    writer.add_uint32("dflash.vocab_size", config.n_vocab)
    writer.add_uint32("tokenizer.ggml.mask_token_id", config.mask)
    return _finish(writer, path, weights, kind)


def write_mtp(path: str | PathLike[str], model: str | PathLike[str], weights: Weights, *, kind: str = "F16") -> Path:
    """Write an MTP head as a file of its own, with the metadata, the embedding and the LM head of its trunk.

    Parameters
    ----------
    path, model : str or path
        The new file, and the file of the trunk, which may hold an MTP head already.
    weights : Mapping of str to float32
        Tensors of the head by their names in a block, such as ``"nextn.eh_proj.weight"``.
    kind : str
        Type of the matrices, as ``"Q8_0"``.
    """
    reader = gguf.GGUFReader(model)
    architecture = str(reader.fields["general.architecture"].contents())
    writer = gguf.GGUFWriter(path, architecture)
    block = int(reader.fields[f"{architecture}.block_count"].contents())
    nextn = reader.fields.get(f"{architecture}.nextn_predict_layers")
    n_layers = block - (int(nextn.contents()) if nextn else 0)
    changed = {f"{architecture}.block_count": n_layers + 1, f"{architecture}.nextn_predict_layers": 1}
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in changed or name == "general.architecture":
            continue
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, _of_blocks(field.contents(), name, architecture, block, n_layers), field.types[0], inner)
    for name, value in changed.items():
        writer.add_uint32(name, value)
    for tensor in reader.tensors:
        if tensor.name in _OF_TRUNK:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    return _finish(writer, path, {f"blk.{n_layers}.{name}": value for name, value in weights.items()}, kind)


def _of_blocks(value: Any, name: str, architecture: str, blocks: int, n_layers: int) -> Any:
    """Return a list with one entry for each block as one for the trunk and a head; any other value unchanged."""
    if name.startswith(architecture) and isinstance(value, list) and len(value) == blocks != n_layers + 1:
        return [*value[:n_layers], value[-1]]
    return value


def _finish(writer: gguf.GGUFWriter, path: str | PathLike[str], weights: Weights, kind: str) -> Path:
    for name, value in weights.items():
        of = gguf.GGMLQuantizationType.F32 if value.ndim == 1 else gguf.GGMLQuantizationType[kind]
        writer.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(value), of), raw_dtype=of)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Path(path)
