"""Requests to text: the engine's thread, completions, streams, prompts, scores."""
