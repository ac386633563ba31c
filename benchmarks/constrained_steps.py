"""Median milliseconds of a plain step under constraints on the output, greedy and sampled.

python benchmarks/constrained_steps.py [MODEL] [--device cuda] [--tokens 160] [--turns 3]
"""

import argparse
import time
from itertools import pairwise
from statistics import median

import dflash

STRING = {"type": "object", "properties": {"text": {"type": "string", "minLength": 2000}}, "required": ["text"]}
CASES = {
    "plain": {},
    "`regex` that allows any character": {"regex": r"(.|\n)*"},
    "`regex` of words": {"regex": r"([A-Za-z]+ )*"},
    "`response_format` with a string": {"response_format": {"type": "json_schema", "json_schema": {"schema": STRING}}},
}
SAMPLED = {"greedy": 0.0, "temperature 1": 1.0}


def main():
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--tokens", type=int, default=160, metavar="N", help="most output tokens of a request (160)")
    parser.add_argument("--turns", type=int, default=3, metavar="N", help="requests of each case, in turns (3)")
    arguments = parser.parse_args()
    times = {(case, kind): [] for case in CASES for kind in SAMPLED}
    with dflash.load(arguments.model, device=arguments.device) as lm:

        def steps(case, kind):
            settings = {"max_tokens": arguments.tokens, "temperature": SAMPLED[kind], "seed": 1}
            clock = [time.perf_counter() for _ in lm.stream([100 + i for i in range(64)], **settings, **CASES[case])]
            return [1e3 * (after - before) for before, after in pairwise(clock)]

        for turn in range(arguments.turns + 1):
            for each, found in times.items():
                took = steps(*each)
                found.extend(took if turn else [])  # the first turn prepares the vocabulary and compiles kernels
    print(f"| | {' | '.join(SAMPLED)} |\n| --- |{' ---: |' * len(SAMPLED)}")
    for case in CASES:
        print(f"| {case} | {' | '.join(f'{median(times[case, kind]):.2f}' for kind in SAMPLED)} |")


if __name__ == "__main__":
    main()
