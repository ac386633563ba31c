"""Limits of the kernels on the sizes of a model, checked when it is loaded."""

from dflash.errors import Unsupported
from dflash.model.config import Config

LANES = 16
"""Elements that kernels read at a time; sizes of rows, heads and states must be multiples of it."""

MAX_DELTA_SIZE = {"cpu": 256, "cuda": 128}
"""Largest key and value size of a linear-attention head, by device: its state must fit registers (GPU) or a cache (CPU)."""

MAX_HEAD_SIZE = {"cpu": 1024, "cuda": 256}
"""Largest attention head, by device; 1,024 is also the limit on metadata."""

MAX_LAYERED_HEAD_SIZE = 512
"""Largest attention head on a GPU of a model whose layers differ."""

MAX_GROUP = 64
"""Most query heads per KV head on a GPU, where they share a tile."""


def refuse_sizes(config: Config, device: str) -> None:
    """Raise if the kernels do not support the sizes of a model."""
    sizes = {
        "embedding_length": config.width,
        "attention.key_length": config.head_size,
        "feed_forward_length": config.ffn,
        "ssm.state_size": config.delta_size,
        "expert_feed_forward_length": config.expert_ffn,
        "expert_shared_feed_forward_length": config.shared_ffn,
    }
    for layer in config.layers:
        sizes[f"attention.key_length{'_swa' if layer.window else ''}"] = layer.head_size
        if layer.ffn % LANES:
            raise _wrong(config, "feed_forward_length", layer.ffn, f"a multiple of {LANES}")
    sizes["embedding_length_per_layer_input"] = config.per_layer
    for name, size in sizes.items():
        if size % LANES:
            raise _wrong(config, name, size, f"a multiple of {LANES}")
    head = MAX_LAYERED_HEAD_SIZE if config.layers and device == "cuda" else MAX_HEAD_SIZE[device]
    limits = {"attention.key_length": head, "ssm.state_size": MAX_DELTA_SIZE[device]}
    for name, limit in (limits | ({"attention.key_length_swa": head} if config.layers else {})).items():
        if sizes.get(name, 0) > limit:
            raise _wrong(config, name, sizes[name], f"at most {limit} on device {device!r}")
    for heads, kv_heads in [(layer.heads, layer.kv_heads) for layer in config.layers] or [(config.heads, config.kv_heads)]:
        if device == "cuda" and heads > MAX_GROUP * kv_heads:
            wanted = f"at most {MAX_GROUP} times the {kv_heads} KV heads on device 'cuda'"
            raise _wrong(config, "attention.head_count", heads, wanted)


def _wrong(config: Config, name: str, size: int, wanted: str) -> Unsupported:
    key = f"{config.architecture}.{name}"
    return Unsupported(f"key {key!r} is {size}, which the kernels do not run: must be {wanted}")
