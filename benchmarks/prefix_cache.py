"""Prefix cache: first token of a growing conversation and of long prompts, warm over cold, and the cost of a snapshot.

python benchmarks/prefix_cache.py [MODEL] [--turns 10] [--lengths 512,2048,8192] [--strategies plain,mtp:3,dflash]

Each number is the least of several runs, since other load on the machine only adds to them. "CPU" counts the processor time
of all threads. A snapshot copies the recurrent state. Beyond that it copies the last KV page and the drafter's state, and
adds an entry to the radix tree.
"""

import argparse
from functools import partial
from time import perf_counter, process_time

import dflash
from dflash.cli.terminal import put, table
from dflash.decode.drafters import Strategy
from dflash.decode.engine import Engine
from dflash.decode.prefix_cache import PrefixCache
from dflash.decode.session import Session
from dflash.evaluation.replay import replay, synthetic
from dflash.model.loading.settings import LoadSettings
from dflash.model.loading.target import load_model

TEXT = "def add(a, b):\n    return a + b\n\n\ndef multiply(a, b):\n    return a * b\n\n\n"
"""Text that the sessions of the snapshots repeat."""

RUNS = 30
"""Runs of a snapshot."""


def first_tokens(model, device, n_turns, repeat):
    """Return the rows of a table: least milliseconds to the first token of each turn, cold and warm."""
    with dflash.load(model, device=device, sequences=2, prefix_cache=True) as lm:
        found = replay(lm, synthetic(n_turns), max_tokens=1, repeat=repeat)
    assert not found.failures, found.failures
    rows = [("turn", "prompt", "cached", "cold, ms", "warm, ms", "share", "cold, CPU ms", "warm, CPU ms", "share")]
    for turn in found.turns:
        row = [turn.name, turn.warm[0].prompt_tokens, turn.warm[0].cached_tokens]
        for measure in ("first_token", "processor"):
            cold, warm = (1e3 * min(getattr(reply, measure) for reply in replies) for replies in (turn.cold, turn.warm))
            row += [f"{cold:,.1f}", f"{warm:,.1f}", f"{warm / cold:.1%}"]
        rows.append(row)
    return rows


def long_prompts(model, device, lengths, strategies):
    """Return the rows of a table: least milliseconds to the first token of prompts that differ in their last 32."""
    loaded = load_model(model, LoadSettings(device=device, sequences=2))
    model, text = loaded.model, loaded.tokenizer.encode(TEXT)
    rows = [("strategy", "prompt", "cached", "cold, ms", "warm, ms", "share")]
    for strategy in strategies:
        for length in lengths:
            engine = Engine(model, chunk=model.prefill_chunk, prefix_cache=PrefixCache(1 << 36, model.pools.page_bytes))
            shared, seconds = (text * (length // len(text) + 1))[: length - 32], []
            for number in range(RUNS):
                session = Session(
                    shared + [number] * 32, strategy=Strategy.of(strategy), max_tokens=1, boundaries=(len(shared),)
                )
                began = perf_counter()
                list(engine.run([session]))
                seconds.append(perf_counter() - began)
            engine.prefix_cache.clear()
            cold, warm = 1e3 * seconds[0], 1e3 * min(seconds[2:])
            rows.append(
                (strategy, f"{length:,}", f"{session.n_cached:,}", f"{cold:,.1f}", f"{warm:,.2f}", f"{warm / cold:.2%}")
            )
    return rows


def snapshots(model, device, lengths, strategies):
    """Return the rows of a table: least milliseconds of a saved snapshot and of the copy of its recurrent state alone."""
    loaded = load_model(model, LoadSettings(device=device, sequences=3))
    model, text = loaded.model, loaded.tokenizer.encode(TEXT)
    rows = [("strategy", "tokens", "state, MiB", "snapshot, ms", "copy of the state, ms", "beyond it, ms", "CPU ms")]
    for strategy in strategies:
        for length in [lengths[0], *lengths]:  # the first round, which touches new memory, does not count
            engine = Engine(model, chunk=model.prefill_chunk)
            prompt = (text * (length // len(text) + 1))[:length]
            session = engine.add(Session(prompt, strategy=Strategy.of(strategy)))
            while session.n_tokens < 2:
                engine.step()
            cache, kept, copies = PrefixCache(1 << 34, model.pools.page_bytes), [], []
            prepare = partial(advance, engine, session, kept)
            whole = least(model, partial(save, cache, session), prepare)
            copy = least(model, partial(clone, model, session, copies), prepare)
            state = sum(array.nbytes for array in copies[0]) / 2**20
            times = whole[0], copy[0], whole[0] - copy[0], whole[1] - copy[1]
            rows.append((strategy, f"{length:,}", f"{state:.1f}", *(f"{1e3 * one:.3f}" for one in times)))
            cache.clear()
            for snapshot in kept:
                snapshot.close()
            session.cancel()
            engine.step()
        del rows[-len(lengths) - 1]
    return rows


def advance(engine, session, kept):
    """Advance a session, so that its next snapshot is one of its own.

    The first snapshot after a step applies the accepted rows to the recurrent state and lets the drafter read their hidden
    states. That is work of the next step, done early, so a snapshot that is not measured comes first. Like all others it is
    kept, since a cache takes new memory for each.
    """
    engine.step()
    kept.append(session.snapshot())


def save(cache, session):
    """Take a snapshot of a session and store it."""
    cache.reserve(session)
    cache.confirm(session)


def clone(model, session, copies):
    """Copy the recurrent state alone."""
    copies.append(model.pools.clone_slot(session.state.slot))


def least(model, run, prepare):
    """Return the least seconds and the least processor seconds of `run`; the first run does not count."""
    clock, processor = [], []
    for _ in range(RUNS + 1):
        prepare()
        model.finish()
        began, used = perf_counter(), process_time()
        run()
        model.finish()
        clock.append(perf_counter() - began)
        processor.append(process_time() - used)
    return min(clock[1:]), min(processor[1:])


def main():
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--turns", type=int, default=10, metavar="N")
    parser.add_argument("--repeat", type=int, default=5, metavar="N", help="rounds of the conversation (5)")
    parser.add_argument("--lengths", default="512,2048,8192", metavar="N,...", help="tokens of the snapshots' sessions")
    parser.add_argument("--strategies", default="plain,mtp:3,dflash", metavar="NAME,...")
    given = parser.parse_args()
    put(table(first_tokens(given.model, given.device, given.turns, given.repeat), right=range(1, 9)) + "\n")
    lengths = [int(n) for n in given.lengths.split(",")]
    strategies = given.strategies.split(",")
    put(table(long_prompts(given.model, given.device, lengths, strategies), right=range(1, 6)) + "\n")
    put(table(snapshots(given.model, given.device, lengths, strategies), right=range(1, 7)))


if __name__ == "__main__":
    main()
