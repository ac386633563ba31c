"""How tokens are chosen: ids in, ids out, never text."""
