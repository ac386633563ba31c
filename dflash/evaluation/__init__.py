"""Comparison of decoding strategies on sets of prompts."""
