"""The line of the server's start that says how many sequences fit, and what memory they have."""

from dflash.decode.engine import Engine
from dflash.kernels.ragged import PAGE
from dflash.model.loading.target import loaded_model
from dflash.model.state.budget import Need


def memory_line(engine: Engine) -> str:
    """Return the line for the engine of a model that was loaded from a file."""
    model, cache = loaded_model(engine.model), engine.prefix_cache
    config, pools = model.config, model.pools
    need, n_tokens = Need.of(config, pools.kv), pools.pages * PAGE
    beside = need.state + need.pending
    each = min(config.context, n_tokens // engine.max_active // PAGE * PAGE)
    fits = f"{each:,} tokens each" if each else f"{n_tokens // PAGE} of {PAGE} tokens each"
    return (
        f"dflash: {engine.max_active} sequences at a time fit with {fits}; KV cache of {n_tokens:,} tokens in all, "
        f"{pools.pages * pools.page_bytes >> 20:,} MiB; {beside >> 20:,} MiB beside it for each sequence, "
        f"drafts of at most {config.pending - 1} tokens; prefix cache {0 if cache is None else cache.capacity >> 20:,} MiB"
    )
