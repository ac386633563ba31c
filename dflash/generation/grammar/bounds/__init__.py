"""Bounds of grammars, schemas and patterns, checked in linear time before the library sees them."""
