"""Throughput of several sequences in one process: plain, a fixed draft depth, and the draft budget, in turns.

python benchmarks/draft_budget.py [MODEL] [--strategy mtp:3] [--streams 1,4,16] [--text code] [--threads 1]

From the step in which the last sequence begins to decode until the first one ends. Time is the process's own processor time
with ``--threads 1``, so that other work on the machine matters less, else the wall clock. Sequences of all turns share an
engine for each way, which remembers what its budget has learned; the first turn does not count.
"""

import argparse
import time

import numpy as np

from dflash.decode import engine as engine_module
from dflash.decode.drafting.drafter import Plain, Strategy
from dflash.decode.engine import Engine
from dflash.decode.session import Session
from dflash.evaluation.prompt_sets import load_prompts
from dflash.model.loading.settings import LoadSettings
from dflash.model.loading.target import load_model


def decode(engine, prompts, strategy, n_output, clock):
    """Return tokens per second, draft tokens a step, accepted ones of them, and rows a step."""
    sessions = [engine.add(Session(prompt, strategy=strategy, max_tokens=n_output)) for prompt in prompts]
    while not all(session.n_tokens for session in sessions):
        engine.step()
    began, before, first = clock(), sum(session.n_tokens for session in sessions), len(sessions[0].steps)
    while not any(session.finished for session in sessions):
        engine.step()
    rate = (sum(session.n_tokens for session in sessions) - before) / (clock() - began)
    rows = np.mean([step.batch for step in sessions[0].steps[first:]])
    while engine.busy:
        engine.step()
    drafted, accepted = (sum(getattr(each, name) for each in sessions) for name in ("n_drafted", "n_accepted"))
    return (
        rate,
        drafted / sum(bool(step.tokens) for each in sessions for step in each.steps),
        accepted / max(drafted, 1),
        rows,
    )


def main():
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--strategy", default="mtp:3")
    parser.add_argument(
        "--streams", type=lambda text: [int(n) for n in text.split(",")], default=[1, 4, 16], metavar="N,..."
    )
    parser.add_argument("--text", default="code", metavar="SET", help="prompts, as of dflash bench (code)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    clock = time.process_time if arguments.threads == 1 else time.perf_counter
    engine_module.perf_counter = clock
    loaded = load_model(
        arguments.model, LoadSettings(threads=arguments.threads, sequences=max(arguments.streams), context=2048)
    )
    cases = [case.prompt for case in load_prompts(arguments.text) if isinstance(case.prompt, str)]
    prompts = [loaded.tokenizer.encode(prompt) for prompt in cases]
    strategy = Strategy.named(arguments.strategy)
    strategy.drafter.prepare(loaded.model)
    ways = {
        "plain": (Engine(loaded.model), Plain()),
        "fixed": (Engine(loaded.model), strategy),
        "budget": (Engine(loaded.model, draft_budget=True), strategy),
    }
    print(
        "| streams | plain, tok/s | fixed over plain | budget over plain | drafted, accepted, rows a step: fixed | budget |"
    )
    print("| ---: | ---: | ---: | ---: | --- | --- |")
    for n in arguments.streams:
        found = {way: [] for way in ways}
        for turn in range(1 + arguments.repeat):
            chosen = [prompts[(i + turn) % len(prompts)] for i in range(n)]
            for way, (engine, each) in ways.items():
                found[way].append(decode(engine, chosen, each, arguments.output, clock))
        found = {way: np.array(rows[1:]) for way, rows in found.items()}
        cells = [f"{np.median(found['plain'][:, 0]):,.0f}"]
        for way in ("fixed", "budget"):
            ratios = found[way][:, 0] / found["plain"][:, 0]
            cells.append(f"{np.median(ratios):.2f} ({ratios.min():.2f} to {ratios.max():.2f})")
        for way in ("fixed", "budget"):
            _, drafted, accepted, rows = np.median(found[way], axis=0)
            cells.append(f"{drafted:.2f}, {accepted:.0%}, {rows:.0f}")
        print(f"| {n} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
