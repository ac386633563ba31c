"""GGUF files of random weights, of any supported architecture, size and type; of true size for measurements.

As a command: ``python tests/support/random_model.py 30b-a3b FILE [--type Q4_K] [--layers N]`` with this folder's parents as
PYTHONPATH. What such a file says is noise, but its speed is that of a real file of this type.
"""

import argparse
import zlib

import gguf
import numpy as np
from matrices import random_matrix
from repacked import number_of

from dflash.kernels.formats import BLOCKS
from dflash.model.config import Config
from dflash.model.gguf.part import TensorInfo
from dflash.model.gguf.tensor_check import expected_tensors
from dflash.model.text.vocabulary import BYTE_LETTERS

PATTERN_ROWS = 1021
"""Rows that are made; larger matrices repeat them. A prime number, so that the rows of no two tiles are the same."""

ATTENTION = {"attention.layer_norm_rms_epsilon": 1e-6, "context_length": 262144}
MODELS = {
    "30b-a3b": ("qwen3moe", 151936, ATTENTION | {
        "block_count": 48, "embedding_length": 2048, "feed_forward_length": 6144, "rope.freq_base": 1e7,
        "attention.head_count": 32, "attention.head_count_kv": 4, "attention.key_length": 128,
        "expert_count": 128, "expert_used_count": 8, "expert_feed_forward_length": 768,
    }),
    "80b-a3b": ("qwen3next", 151936, ATTENTION | {
        "block_count": 48, "embedding_length": 2048, "feed_forward_length": 5120, "rope.freq_base": 1e7,
        "attention.head_count": 16, "attention.head_count_kv": 2, "attention.key_length": 256, "rope.dimension_count": 64,
        "expert_count": 512, "expert_used_count": 10, "expert_feed_forward_length": 512,
        "expert_shared_feed_forward_length": 512, "ssm.conv_kernel": 4, "ssm.state_size": 128, "ssm.group_count": 16,
        "ssm.time_step_rank": 32, "ssm.inner_size": 4096, "full_attention_interval": 4,
    }),
    "coder-1.5b": ("qwen2", 151936, ATTENTION | {
        "block_count": 28, "embedding_length": 1536, "feed_forward_length": 8960, "rope.freq_base": 1e6,
        "attention.head_count": 12, "attention.head_count_kv": 2,
    }),
    "smollm2-135m": ("llama", 49152, ATTENTION | {
        "block_count": 30, "embedding_length": 576, "feed_forward_length": 1536, "rope.freq_base": 1e5,
        "attention.head_count": 9, "attention.head_count_kv": 3,
    }),
}  # fmt: skip
"""Architecture, vocabulary and keys of released models."""


def metadata_of(architecture, keys):
    """Metadata of a model, with a tokenizer of bytes."""
    tokens = [*BYTE_LETTERS, "ab", "<|endoftext|>", "<|im_end|>"]
    tokenizer = {"model": "gpt2", "pre": "qwen2", "tokens": tokens, "token_type": [1] * 257 + [3, 3], "merges": ["a b"]}
    tokenizer |= {"eos_token_id": 258, "padding_token_id": 257, "add_bos_token": False}
    return (
        {"general.architecture": architecture}
        | {f"{architecture}.{name}": value for name, value in keys.items()}
        | {f"tokenizer.ggml.{name}": value for name, value in tokenizer.items()}
    )


def config_of(architecture, n_vocab, keys, present=()):
    """Configuration of a model that is not tied, and the shapes of its tensors."""
    tensors = {name: TensorInfo(name, (n_vocab, 1), "F32", 0, 4, 0) for name in ("token_embd.weight", "output.weight")}
    config = Config.from_gguf(metadata_of(architecture, keys), tensors)
    return config, expected_tensors(config, present)


def type_of(name, shape, kind):
    """Type of a tensor: float32 where converters leave it, half where rows are no whole blocks."""
    if len(shape) == 1 or "ffn_gate_inp" in name or "conv1d" in name:
        return "F32"
    return "F16" if shape[-1] % BLOCKS[kind].elements else kind


def random_tensor(name, shape, kind, *, unscaled=False):
    """Packed random weights of a tensor, the same in every process; a matrix keeps the size of a row.

    Where the model does not scale scores of attention by the head size, the gains of queries do.
    """
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if name.endswith("ssm_a"):
        return -rng.uniform(0.05, 4, shape).astype(np.float32)
    if kind == "F32" and len(shape) == 1:
        around = 1 if "norm" in name or name.endswith((".scale", "_scale.weight", "_freqs.weight")) else 0
        values = around + rng.normal(0, 0.1, shape).astype(np.float32)
        return values * shape[0] ** -0.5 if unscaled and name.endswith("attn_q_norm.weight") else values
    if kind == "F32":
        return rng.normal(0, shape[-1] ** -0.5, shape).astype(np.float32)
    rows, width = int(np.prod(shape[:-1])), shape[-1]
    pattern = random_matrix(min(rows, PATTERN_ROWS), width, kind, rng=rng)
    if BLOCKS[kind].elements > 1:
        pattern = random_matrix(*pattern.shape, kind, pattern.unpacked().std() * width**0.5, rng)
    return np.resize(pattern.data, (rows, pattern.row_bytes))


def write(path, architecture, n_vocab, keys, kind, fused=()):
    """Write a model whose matrices have one type; `fused` are names in a block of tensors that it has in place of others."""
    present = [*fused, *(f"blk.{i}.{name}" for i in range(keys["block_count"]) for name in fused)]
    config, shapes = config_of(architecture, n_vocab, keys, present)
    writer = gguf.GGUFWriter(path, architecture)
    add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32, bool: writer.add_bool}
    add |= {np.ndarray: lambda name, values: writer.add_array(name, values.tolist())}
    for name, value in metadata_of(architecture, keys).items():
        if name != "general.architecture":
            add.get(type(value), writer.add_array)(name, value)
    types = {name: type_of(name, shape, kind) for name, shape in shapes.items()}
    for name, shape in shapes.items():
        block = BLOCKS[types[name]]
        n_bytes = int(np.prod(shape, dtype=np.int64)) // block.elements * block.n_bytes
        packed = (*shape[:-1], shape[-1] // block.elements * block.n_bytes)
        writer.add_tensor_info(name, packed, np.dtype(np.uint8), n_bytes, number_of(types[name]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, shape in shapes.items():
        writer.write_tensor_data(random_tensor(name, shape, types[name], unscaled=config.blocks.unscaled))
    writer.close()


def main():
    """Write the model that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("file")
    parser.add_argument("--type", default="Q4_K", choices=BLOCKS)
    parser.add_argument("--layers", type=int)
    given = parser.parse_args()
    architecture, n_vocab, keys = MODELS[given.model]
    keys = keys | {"block_count": given.layers or keys["block_count"]}
    write(given.file, architecture, n_vocab, keys, given.type, ("ssm_ba.weight",) if architecture == "qwen3next" else ())


if __name__ == "__main__":
    main()
