"""Who guesses: draft models, draft heads, and the text itself."""
