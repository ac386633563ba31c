"""A recorded model with twice its attention heads, for splits that need more than one KV head."""

import gguf
import numpy as np
from gguf_writing import write_all
from golden import path_of


def write_twice_the_heads(name, path):
    """Write a model of unquantised weights whose attention has every head twice, the second time with other signs.

    Returns the path.
    """
    reader = gguf.GGUFReader(path_of(name))
    kind = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(path, kind)
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        value, types = field.contents(), field.types
        if key in (f"{kind}.attention.head_count", f"{kind}.attention.head_count_kv"):
            value = [2 * n for n in value] if isinstance(value, list) else 2 * value
        writer.add_key_value(key, value, types[0], types[1] if len(types) > 1 else None)
    for tensor in reader.tensors:
        data, last = np.array(tensor.data), tensor.name.rsplit(".", 2)[-2]
        if last in ("attn_q", "attn_k", "attn_v") and data.ndim == 2:
            data = np.concatenate([data, data[::-1]])
        elif last == "attn_output":
            data = np.concatenate([data, data[:, ::-1] / 2], axis=1).astype(data.dtype)
        writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
    write_all(writer)
    return path
