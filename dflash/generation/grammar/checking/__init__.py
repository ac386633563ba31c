"""Grammars are compiled in a process of their own first, where a crash or a large allocation costs one request."""
