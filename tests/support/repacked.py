"""A copy of a model file in which some matrices have another type, which may be one of a plugin."""

import gguf
from gguf_writing import write_all

from dflash.kernels.formats import BLOCKS
from dflash.model.loading.hub import resolve


def number_of(kind):
    """The number of a type in files; afterwards the package `gguf` writes it."""
    block = BLOCKS[kind]
    gguf.GGML_QUANT_SIZES.setdefault(block.id, (block.elements, block.n_bytes))
    return block.id


def repack(source, path, kind, encode, *, ends):
    """Copy a file of one part; where names end with `ends`, ``encode(float32 (R, K))`` returns uint8 (R, bytes of a row)."""
    reader = gguf.GGUFReader(resolve(source))
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if not field.name.startswith(("GGUF.", "general.architecture")):
            writer.add_key_value(field.name, field.contents(), field.types[0], field.types[-1])
    for tensor in reader.tensors:
        data, number = tensor.data, tensor.tensor_type
        if tensor.name.endswith(ends):
            data, number = encode(gguf.dequantize(data, number)), number_of(kind)
        writer.add_tensor(tensor.name, data, raw_dtype=number)
    write_all(writer)
