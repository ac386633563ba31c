"""Compiled code on disk: what may be read, where it lies, and when it is removed."""
