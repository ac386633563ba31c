"""Median milliseconds of a plain step under constraints on the output, greedy and sampled.

python benchmarks/constrained_steps.py [MODEL] [--device cuda] [--tokens 160] [--turns 3] [--sequences 1 8]

With several sequences all have the constraint; each is a request of its own thread. Steps of a GPU are measured twice: as
they are, and with constrained rows sampled on the CPU, as those of a session with logits processors are.
"""

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from statistics import median

import dflash
from dflash.decode.grammar.state import GrammarState

STRING = {"type": "object", "properties": {"text": {"type": "string", "minLength": 2000}}, "required": ["text"]}
CASES = {
    "plain": {},
    "`regex` that allows any character": {"regex": r"(.|\n)*"},
    "`regex` of words": {"regex": r"([A-Za-z]+ )*"},
    "`response_format` with a string": {"response_format": {"type": "json_schema", "json_schema": {"schema": STRING}}},
}
SAMPLED = {"greedy": 0.0, "temperature 1": 1.0}
PREPARE = GrammarState.prepare


def prepare_for_host(state, draft, n_vocab):
    """Compute the masks during the forward, but have `verify` sample the rows on the CPU."""
    PREPARE(state, draft, n_vocab)


def main():
    """Print a table for each number of sequences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--tokens", type=int, default=160, metavar="N", help="most output tokens of a request (160)")
    parser.add_argument("--turns", type=int, default=3, metavar="N", help="requests of each case, in turns (3)")
    parser.add_argument(
        "--sequences", type=int, nargs="+", default=[1], metavar="N", help="sequences that decode together (1)"
    )
    arguments = parser.parse_args()
    most = max(arguments.sequences)
    with dflash.load(arguments.model, device=arguments.device, sequences=most) as lm, ThreadPoolExecutor(most) as threads:
        samplers = ("device", "CPU") if lm.info()["device"]["kind"] == "cuda" else ("CPU",)

        def steps(case, kind, sampler, n):
            settings = {"max_tokens": arguments.tokens, "temperature": SAMPLED[kind], "seed": 1, **CASES[case]}
            GrammarState.prepare = prepare_for_host if sampler == "CPU" else PREPARE
            prompts = [[100 + i + row for i in range(64)] for row in range(n)]
            others = [threads.submit(lm.generate, prompt, **settings) for prompt in prompts[1:]]
            clock = [time.perf_counter() for _ in lm.stream(prompts[0], **settings)]
            for other in others:
                other.result()
            return [1e3 * (after - before) for before, after in pairwise(clock)]

        for n in arguments.sequences:
            times = {(case, kind, sampler): [] for case in CASES for kind in SAMPLED for sampler in samplers}
            for turn in range(arguments.turns + 1):
                for each, found in times.items():
                    took = steps(*each, n)
                    found.extend(took if turn else [])  # the first turn prepares the vocabulary and compiles kernels
            columns = [(kind, sampler) for kind in SAMPLED for sampler in samplers]
            print(f"| sequences: {n} | {' | '.join(f'{kind}, sampled on the {sampler}' for kind, sampler in columns)} |")
            print(f"| --- |{' ---: |' * len(columns)}")
            for case in CASES:
                print(f"| {case} | {' | '.join(f'{median(times[case, *column]):.2f}' for column in columns)} |", flush=True)


if __name__ == "__main__":
    main()
