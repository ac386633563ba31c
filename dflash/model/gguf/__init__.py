"""GGUF files: headers, metadata keys, tensors and the architectures that they hold."""
