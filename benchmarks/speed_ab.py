"""Speed of two checkouts on the CPU, side by side: prefill, plain decode, decode with the demo's draft.

python benchmarks/speed_ab.py OTHER_CHECKOUT [--processes 5] [--rounds 8]

Each turn starts a process of both checkouts, which are asked one after the other, first one then the other first, so that
both meet the same load of the machine. Each runs on one thread and, where the system can, on the same core.

A ratio is tokens per second of this checkout to those of the other, of CPU time (of the whole process) and of wall time:
from the median of all rounds, and from least times. Every round has the same steps, so the least time is the sum over the
steps of the shortest that each took in any round. On a shared machine it varies the least.

The other commit may be older: a child uses only `dflash.load` and `LM.stream`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROMPT = "def fibonacci(n):\n    if n < 2:\n        return n\n    return"
N_TOKENS = {"prefill": 512, "plain": 96, "dflash": 96}
"""Tokens of each case."""


def answer():
    """Measure the case that each line of the input names: print CPU and wall seconds of its steps as JSON."""
    import dflash

    with dflash.load("demo", device="cpu", threads=1, context=1024, sequences=1) as lm:
        ids = [100 + i % 997 for i in range(N_TOKENS["prefill"])]

        def run(case):
            stream = lm.stream(ids, max_tokens=1) if case == "prefill" else lm.stream(PROMPT, strategy=case, max_tokens=96)
            times = [(time.process_time(), time.perf_counter())]
            times += [(time.process_time(), time.perf_counter()) for _ in stream]
            return [[after - before for before, after in pairwise(clock)] for clock in zip(*times, strict=True)]

        for case in N_TOKENS:
            run(case)
        print(json.dumps(str(Path(dflash.__file__).parents[1])), flush=True)
        for line in sys.stdin:
            print(json.dumps(run(line.strip())), flush=True)


class Child:
    """A process that measures one checkout."""

    def __init__(self, folder, core):
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--answer", str(folder), *([] if core is None else ["--core", str(core)])],
            env={**os.environ, "PYTHONPATH": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self._line() != str(folder):
            raise SystemExit(f"{folder}: is not a checkout of dflash")

    def measure(self, case):
        """Return CPU seconds and wall seconds of each step."""
        print(case, file=self._process.stdin, flush=True)
        return self._line()

    def close(self):
        """End the process."""
        self._process.stdin.close()
        self._process.wait()

    def _line(self):
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a process ended early with exit status {self._process.wait()}")
        return json.loads(line)


def measure(folders, n_processes, n_rounds):
    """Return ``{case: [[(cpu, wall), ...] of each folder]}``, seconds of the steps of each round."""
    found = {case: [[] for _ in folders] for case in N_TOKENS}
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [None]
    for turn in range(n_processes):
        children = [Child(folder, cores[turn % len(cores)]) for folder in folders]
        for number in range(n_rounds):
            for case in N_TOKENS:
                for which in (0, 1) if (turn + number) % 2 else (1, 0):
                    found[case][which].append(children[which].measure(case))
        for child in children:
            child.close()
        print(f"turn {turn + 1} of {n_processes}", file=sys.stderr, flush=True)
    return found


def main():
    """Print tokens per second and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="another checkout")
    parser.add_argument("--processes", type=int, default=5, metavar="N", help="processes of each checkout (5)")
    parser.add_argument("--rounds", type=int, default=8, metavar="N", help="measurements of each case in a process (8)")
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--core", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.answer:
        if arguments.core is not None:
            os.sched_setaffinity(0, {arguments.core})
        return answer()
    found = measure([ROOT, arguments.other.resolve()], arguments.processes, arguments.rounds)
    print(f"{'':8} {'tokens/s of CPU time':>24}    {'ratio, CPU time':>20}    {'ratio, wall time':>20}")
    print(f"{'':8} {'this':>12}{'other':>12}    {'median':>10}{'least':>10}    {'median':>10}{'least':>10}")
    for case, sides in found.items():
        ratios, rates = "", ""
        for clock in (0, 1):
            this, other = ([one[clock] for one in side] for side in sides)
            median = [statistics.median(map(sum, side)) for side in (this, other)]
            least = [sum(map(min, zip(*side, strict=True))) for side in (this, other)]
            ratios += f"    {median[1] / median[0]:10.3f}{least[1] / least[0]:10.3f}"
            rates = rates or "".join(f"{N_TOKENS[case] / seconds:12.1f}" for seconds in least)
        print(f"{case:8} {rates}{ratios}")
    return None


if __name__ == "__main__":
    sys.exit(main())
