"""Parsers of command lines."""
