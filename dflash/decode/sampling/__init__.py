"""Sampling: how a token is picked from a row of logits."""
