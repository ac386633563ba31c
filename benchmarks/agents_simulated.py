"""What agents find in the prefix cache of a simulated 27B on an H200, by the memory of the cache.

python benchmarks/agents_simulated.py FOLDER [--clients 8] [--sequences 8] [--names 0114,0131] [--memory A:B:C ...]

Engine, prefix cache and clients are real, the device is a clock (`tests/support/simulated_gpu.py`): passes take the time of
an H200 and compute nothing. A page of 256 tokens takes 8.5 MiB (q8_0), a state 150 MiB. Prompts have their traces' lengths,
as in ``dflash bench --traces``. Each ``--memory`` names KV pages, MiB of the prefix cache, and those of them for states.
"""

import argparse
import heapq
import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

from dflash.decode.prefix_cache import PrefixCache
from dflash.decode.scheduling import reread, starter
from dflash.decode.session import Session
from dflash.evaluation.traces import load_traces
from dflash.evaluation.traces.filler import Filler
from dflash.evaluation.traces.measures import hits
from dflash.evaluation.traces.sent import SentRequest
from dflash.evaluation.traces.session_prompts import SessionPrompts
from dflash.kernels.delta.state_copies import StateCopy

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
import ahead_toy
import simulated_gpu
import toy
from simulated_gpu import SimulatedGpu, install, server

PAGE, STATE = 34 * 256 << 10, 150 << 20
"""Bytes of a KV page of 256 tokens, and of a recurrent state."""


class Snapshot(toy.Snapshot):
    """A snapshot with the bytes of a 27B."""

    def __init__(self, state, at=None):
        super().__init__(state, at)
        self.n_bytes = STATE


class State(ahead_toy.AheadState):
    """A state that can be copied inside of a pass."""

    def copy_after(self, n):
        return StateCopy(n, self.length + n, [b""])


class Clients:
    """Clients that replay sessions of traces, each request after the end of the one before and its pause."""

    def __init__(self, traces, arguments):
        self._traces, self._arguments = traces, arguments
        self._numbers, self._filler, self.done = itertools.count(), Filler(list(range(1, 13)), 0), []

    def client(self, client):
        """Yield pause, session and record of each request; continues with the session that has ended."""
        while True:
            number = next(self._numbers)
            trace = self._traces[number % len(self._traces)]
            prompts = SessionPrompts(trace, self._filler, f"{number}")
            for turn, request in enumerate(trace.requests[: self._arguments.turns]):
                if request.n_prompt + request.n_output > self._arguments.max_context:
                    break
                ids, n_before, n_own = prompts.prompt(turn)
                n_answered = 0 if request.extends is None else trace.requests[request.extends].n_output
                sent = SentRequest(
                    client, f"{number}", turn, request.n_prompt, request.n_output, n_before, n_own, n_answered
                )
                session = Session(ids, max_tokens=request.n_output, conversation=f"{number}")
                yield request.think * self._arguments.think_scale if turn else 0.0, session, sent
                prompts.answered(turn, session.output_ids)
                sent.n_cached, sent.n_received = session.n_cached, session.n_tokens
                self.done.append(sent)


def replayed(traces, arguments, memory):
    """Replay for some seconds of the simulated clock; return the requests that have ended, and the cache's counts."""
    n_pages, mib, copied = memory
    gpu, heap, running = SimulatedGpu(arguments.sequences, context=131_072), [], {}
    gpu.pools = toy.ToyPools(n_pages, arguments.sequences + 1)
    gpu.state, gpu.max_state_copies = lambda: State(gpu.pools), 16
    cache = PrefixCache(mib << 20, PAGE, reread=True, max_copied=copied << 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toy, "Snapshot", Snapshot)
        patch.setattr(ahead_toy, "Snapshot", Snapshot)
        patch.setattr(simulated_gpu, "CAPTURE_MS", 0.0)
        install(patch, gpu)
        for module in (reread, starter):
            patch.setattr(module, "perf_counter", lambda: gpu.now)
        engine, clients = server(gpu, prefix_cache=cache, max_active=arguments.sequences), Clients(traces, arguments)
        clients_of = [clients.client(i) for i in range(arguments.clients)]

        def ask(client):
            pause, session, sent = next(clients_of[client])
            heapq.heappush(heap, (gpu.now + pause, client, session, sent))

        for client in range(arguments.clients):
            ask(client)
        while gpu.now < arguments.seconds:
            if not engine.busy:
                left = engine.rereads.seconds_left
                gpu.now = max(gpu.now, min(heap[0][0], gpu.now + left + 1e-9 if left is not None else np.inf))
            while heap and heap[0][0] <= gpu.now:
                began, client, session, sent = heapq.heappop(heap)
                sent.began, running[session] = began, (client, sent)
                engine.add(session)
            for session, step in engine.step():
                client, sent = running[session]
                if step.tokens:
                    sent.arrivals.append(gpu.now)
                if step.finish is not None:
                    del running[session]
                    ask(client)
        return clients.done, cache.stats


def main():
    """Replay and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--names", type=lambda text: tuple(text.split(",")), default=("",), help="ends of their names; all")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--think-scale", type=float, default=0.2)
    parser.add_argument("--max-context", type=int, default=130_000)
    numbers = lambda text: tuple(map(int, text.split(":")))  # noqa: E731
    parser.add_argument("--memory", type=numbers, action="append", help="PAGES:MIB:COPIES; repeat")
    arguments = parser.parse_args()
    traces = [trace for trace in load_traces(arguments.folder) if trace.name.endswith(arguments.names)]
    print(
        "| KV pages | cache, MiB | for states | requests | tok/s | cached of reusable | after answer / in prompt / none |",
        end="",
    )
    print(" after a whole answer | first token of later turns, median / 90 %, s | gap, median / p99 / longest, ms |", end="")
    print(" evictions | reread tokens |\n|" + " ---: |" * 12)
    for memory in arguments.memory or [(4096, 10_185, 10_185), (10_261, 101_755, 14_537)]:
        done, stats = replayed(traces, arguments, memory)
        later, cache = [sent for sent in done if sent.found], hits(done)
        gaps = np.percentile([1e3 * gap for sent in done for gap in sent.gaps], [50, 99, 100])
        first = np.percentile([sent.first_token for sent in later], [50, 90])
        cells = [f"{each:,}" for each in (*memory, len(done))] + [
            f"{sum(s.n_output for s in done) / arguments.seconds:,.0f}"
        ]
        cells += [f"{cache['cached'] / cache['reusable']:.1%}"]
        cells += [" / ".join(str(cache[kind]) for kind in ("answer", "prompt", "nothing"))]
        cells += [f"{cache['answer_found']} of {cache['answer_fits']}", " / ".join(f"{each:,.2f}" for each in first)]
        cells += [" / ".join(f"{each:,.0f}" for each in gaps), f"{stats.evictions:,}", f"{stats.reread_tokens:,}"]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
