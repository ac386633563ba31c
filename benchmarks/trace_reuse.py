"""Prompt tokens that later turns of traces must read, by where a prefix cache keeps states; from the traces' ids alone.

python benchmarks/trace_reuse.py FOLDER

States are kept without limit: at the ends of prompts, there also at multiples of some number of tokens only, and at the ends
of answers, which fit a prompt that holds the whole answer. ``ideal`` is a state at every token.
"""

import sys
from bisect import bisect_left

from dflash.evaluation.traces import load_traces

POLICIES = {
    "ideal": None,
    "ends of prompts and answers": (1, True),
    "ends of prompts": (1, False),
    "ends of prompts, multiples of 64": (64, False),
    "ends of prompts, multiples of 256": (256, False),
}


def shared(one, other):
    """Return the number of first blocks that are equal."""
    most = min(len(one), len(other))
    return bisect_left(range(1, most + 1), True, key=lambda n: one[:n] != other[:n])


def found(trace, index, policy):
    """Return the tokens of the longest state that fits a prompt."""
    request, best = trace.requests[index], 0
    for i, before in enumerate(trace.requests[:index]):
        equal = shared(before.blocks, request.blocks) * trace.block_size
        whole = request.n_prompt - before.n_prompt >= before.n_output
        if i == request.extends:
            equal = min(before.n_prompt + before.n_output, request.n_prompt)
        if policy is None:
            best = max(best, min(equal, request.n_prompt - 1))
            continue
        multiple, answers = policy
        end = (before.n_prompt - 1) // multiple * multiple
        best = max(best, end if end <= equal else 0)
        if answers and i == request.extends and whole:
            best = max(best, before.n_prompt + before.n_output - 1)
    return best


def main():
    traces = load_traces(sys.argv[1])
    later = [(trace, i) for trace in traces for i in range(1, len(trace.requests))]
    others = [(trace, i) for trace, i in later if trace.requests[i].extends is None]
    mean = lambda turns, policy: sum(t.requests[i].n_prompt - found(t, i, policy) for t, i in turns) / len(turns)  # noqa: E731
    print(f"| states | tokens read in each of {len(later):,} later turns | in {len(others)} that continue no prompt |")
    print("| --- | ---: | ---: |")
    for name, policy in POLICIES.items():
        print(f"| {name} | {mean(later, policy):,.0f} | {mean(others, policy):,.0f} |")


if __name__ == "__main__":
    main()
