"""HTTP server with OpenAI's API. `python -m dflash.serve` starts it."""
