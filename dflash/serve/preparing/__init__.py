"""From a parsed request to completions that can start."""
