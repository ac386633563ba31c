"""First tokens of agents' turns under load, over those of the same turns alone with their states warm.

python benchmarks/agents_alone.py FOLDER URL [--clients 1,4,8] [--names 0114,0131] [--turns 25] [--seconds 100]

Each number of clients replays the traces as ``dflash bench --traces`` does. Then each later turn is sent once more, the last
one first, while nothing else runs: its prompt up to the end of the answer before, and other filler of the same length after
that, so that the server begins where it has a state for this turn. A turn counts if it began no earlier alone than under
load, and after the answer before if its prompt holds all of it; other states have left the cache.
"""

import argparse
import json
import time
from collections import Counter
from pathlib import Path

import numpy as np

from dflash.evaluation.traces import ServerURL, TraceLimits, load_traces
from dflash.evaluation.traces.filler import Filler, vocabulary
from dflash.evaluation.traces.measures import TURNS
from dflash.evaluation.traces.run import replay_traces

WANTED = {1: 1.4, 4: 2.0, 8: 3.0}
"""Most times alone that are wanted, by the number of clients."""


class Recording:
    """A transport that keeps the prompts of all requests, by session and turn."""

    def __init__(self, transport):
        self._transport, self.prompts, self._turns = transport, {}, Counter()

    def __getattr__(self, name):
        return getattr(self._transport, name)

    def send(self, prompt_ids, n_output, on_tokens, conversation):
        self.prompts[conversation, self._turns[conversation]] = prompt_ids
        self._turns[conversation] += 1
        return self._transport.send(prompt_ids, n_output, on_tokens, conversation)


def alone(transport, filler, sent, prompt, pause):
    """Send a turn once more with other tokens at its end; return seconds to the first token, and tokens from the cache."""
    n_kept = min(sent.n_before + sent.n_own, len(prompt) - 1)
    ids = [*prompt[:n_kept], *filler.tokens(f"{sent.session} {sent.turn}", len(prompt) - n_kept)]
    time.sleep(pause)
    began, arrivals = time.perf_counter(), []
    answered = transport.send(ids, 1, lambda: arrivals.append(time.perf_counter()), f"alone {sent.session} {sent.turn}")
    return arrivals[0] - began, answered.n_cached or 0


def is_warm(sent, n_cached):
    """Return True if the server began with the state that the turn should find."""
    return n_cached >= max(sent.n_cached or 0, sent.n_before if sent.may_find_answer else 1)


def row(name, pairs):
    """Print medians of both, and their ratio."""
    if pairs:
        load, once = np.array(pairs).T
        medians = np.median(load), np.median(once)
        cells = [f"{1e3 * each:,.0f}" for each in medians]
        cells += [f"**{medians[0] / medians[1]:.2f}**", f"{np.median(load / once):.2f}", f"{(load / once).max():.1f}"]
        print(f"| {name} | {len(pairs)} | {' | '.join(cells)} |", flush=True)


def main():
    """Replay, send each later turn again, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("url")
    parser.add_argument("--names", type=lambda text: tuple(text.split(",")), default=("",), help="ends of their names; all")
    numbers = lambda text: [int(n) for n in text.split(",")]  # noqa: E731
    parser.add_argument("--clients", type=numbers, default=[1, 4, 8])
    parser.add_argument("--turns", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=100.0, help="of each number of clients")
    parser.add_argument("--think-scale", type=float, default=0.2)
    parser.add_argument("--max-context", type=int, default=130_000)
    parser.add_argument("--scale", type=int, default=1)
    parser.add_argument("--most", type=int, default=100, help="turns that are sent again (100)")
    parser.add_argument("--pause", type=float, default=0.1, help="seconds before each of them")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    traces = [trace for trace in load_traces(arguments.folder) if trace.name.endswith(arguments.names)]
    limits = TraceLimits(
        turns=arguments.turns,
        seconds=arguments.seconds,
        max_context=arguments.max_context,
        think_scale=arguments.think_scale,
        scale=arguments.scale,
    )
    server, found = ServerURL(arguments.url), []
    filler = Filler(vocabulary(server.encode), 1 << 20)
    print("| clients, turns | turns | under load, ms | alone, ms | medians' ratio | median ratio | largest |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for n in arguments.clients:
        transport = Recording(server)
        run = replay_traces(transport, traces, n, limits)
        later = [sent for sent in run.requests if sent.n_before and sent.arrivals and not sent.error][-arguments.most :]
        pairs, cold = [], 0
        for sent in reversed(later):
            seconds, n_cached = alone(server, filler, sent, transport.prompts[sent.session, sent.turn], arguments.pause)
            warm = is_warm(sent, n_cached)
            cold += not warm
            found.append({**sent.as_dict(), "clients": n, "alone": seconds, "alone_cached": n_cached, "is_warm": warm})
            if warm:
                pairs.append((sent.turn + 1, sent.first_token, seconds))
        row(f"{n}, all (wanted: {WANTED.get(n, '–')})", [pair[1:] for pair in pairs])
        for first, end in zip(TURNS[1:], (*TURNS[2:], 1 << 30), strict=True):
            row(f"{n}, from turn {first}", [pair[1:] for pair in pairs if first <= pair[0] < end])
        print(f"{n} clients: {len(run.requests)} requests, {cold} of {len(later)} turns had no state any more", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
