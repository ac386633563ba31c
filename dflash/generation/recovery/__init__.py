"""Recoveries that need a tokenizer or a chat template."""
