"""Sequences of a real model that compete for a few KV pages."""

from dflash.decode.engine import Engine


def run_in(model, n_pages, sessions, *, between=lambda engine: None):
    """Run sessions while only `n_pages` pages are free, and call `between` after each step; return the engine."""
    held = model.pools.take_pages(model.pools.free_pages - n_pages)
    try:
        engine = Engine(model, headroom=0)
        for session in sessions:
            engine.add(session)
        while engine.busy:
            engine.step()
            between(engine)
        assert [session.error for session in sessions] == [None] * len(sessions)
        assert model.pools.free_pages == n_pages
    finally:
        model.pools.return_pages(held)
    return engine
