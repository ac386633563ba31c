"""Lines that the server prints at its start."""

import json
import shlex

from dflash.decode.engine import Engine
from dflash.kernels.ragged import PAGE
from dflash.model.loading.target import loaded_model
from dflash.model.state.budget import Need


def ready_line(url: str, *, name: str, context: int, strategy: str, has_key: bool, has_template: bool) -> str:
    """Return the line: URL, model, context, strategy, and a command that works as printed.

    has_key: True if requests need a key. It is never printed: the command is then one that needs none.
    """
    if has_key:
        command = f"curl {url}/health"
    else:
        path, body = "completions", {"prompt": "import os", "max_tokens": 32}
        if has_template:
            path, body = "chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 64}
        command = f"curl {url}/v1/{path} -H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"
    return f"dflash: {url} serves {name}, context {context}, strategy {strategy}; try: {command}"


def memory_line(engine: Engine) -> str:
    """Return the line for the engine of a model that was loaded from a file."""
    model, cache = loaded_model(engine.model), engine.prefix_cache
    config, pools = model.config, model.pools
    need, n_tokens = Need.of(config, pools.kv), pools.pages * PAGE
    each = min(config.context, n_tokens // engine.max_active // PAGE * PAGE)
    fits = f"{each:,} tokens each" if each else f"{n_tokens // PAGE} of {PAGE} tokens each"
    cached, copied = (0, 0) if cache is None else (cache.capacity, cache.max_copied)
    return (
        f"dflash: {engine.max_active} sequences at a time fit with {fits}; KV cache of {n_tokens:,} tokens in all, "
        f"{pools.pages * pools.page_bytes >> 20:,} MiB; {need.state + need.pending >> 20:,} MiB beside it for a sequence, "
        f"drafts of at most {config.pending - 1} tokens; prefix cache {cached >> 20:,} MiB, states at most {copied >> 20:,}"
        f"; weights unpacked for prompts {model.unpacked_bytes >> 20:,} MiB"
    )
