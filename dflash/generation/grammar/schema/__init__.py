"""JSON schemas of requests: what a grammar enforces, approximates or refuses."""
