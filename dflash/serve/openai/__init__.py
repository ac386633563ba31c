"""OpenAI's chat completions and completions: bodies of requests, and responses."""
