"""Grammars over token ids: which tokens may follow, and how drafts obey."""
