"""Endpoints for operators and tools: models, tokens, properties, slots, metrics; logs of requests."""
