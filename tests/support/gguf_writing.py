"""The end of writing a GGUF file with the package `gguf`."""


def write_all(writer):
    """Write header, metadata and tensors of a `gguf.GGUFWriter`, and close the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
