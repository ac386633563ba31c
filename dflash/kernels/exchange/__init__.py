"""All-gather of columns among the GPUs of a tensor split."""
