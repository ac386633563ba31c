"""Judge `adaptive` by the best fixed strategy: tokens a second of one process, and model time by a cost table.

python benchmarks/adaptive_judge.py code > run-1.json                            # one process: strategies in turns
python benchmarks/adaptive_judge.py code --against plain,dflash > run-2.json     # further ones need the best of them only
python benchmarks/adaptive_judge.py --of run-*.json                              # the table over all processes

Other work on the machine disturbs times. So each step is also counted with its drafter, draft size and rows. Model time is
the sum of their milliseconds in the median cost table of all processes.
"""

import argparse
import json
import statistics
from collections import Counter
from pathlib import Path

import dflash
from dflash.decode.drafters.adaptive.drafter import Adaptive
from dflash.decode.drafters.adaptive.measuring import measures_of
from dflash.decode.drafters.adaptive.session import AdaptiveState
from dflash.evaluation.prompt_sets import BUNDLED, load_prompts

FIXED = {"plain": "", "lookup": "PromptLookup", "mtp:2": "MTP", "mtp:3": "MTP", "dflash": "DFlash", "ddtree:8": "DFlash"}
"""Fixed strategies, and the drafter whose latency their steps have."""

SIZES = (1, 3, 7, 15)


def run(prompts: str, against: list[str], max_tokens: int, rounds: int) -> dict:
    """Return seconds by prompt, steps by kind and the cost table of one process."""
    lm = dflash.load("demo", device="cpu")
    names, observed = [*against, "adaptive"], []
    for name in names:
        lm.prepare(name)
    observe = AdaptiveState.observe

    def logged(self, step, out, rows):
        if not isinstance(rows, slice):  # `Step.drafted` lacks the draft tokens that were not verified
            observed.append((type(self.choice[0].drafter).__name__ if self.choice[0] else "", len(self.draft), step.batch))
        observe(self, step, out, rows)

    AdaptiveState.observe = logged
    cases = load_prompts(prompts)
    for name in names:
        if name != "adaptive":  # its learning phase counts
            lm.generate(cases[0].prompt, strategy=name, max_tokens=8, recover=(), **cases[0].options)
    seconds = {name: [[] for _ in cases] for name in names}
    steps, texts = {name: Counter() for name in names}, {}
    for round_ in range(rounds):
        for i, case in enumerate(cases):
            for turn in range(len(names)):
                name = names[(turn + i + round_) % len(names)]
                observed.clear()
                found = lm.generate(
                    case.prompt,
                    strategy=name,
                    recover=(),
                    max_tokens=max_tokens,
                    **case.options,
                    **{"seed": 0, **case.sampling},
                )
                assert texts.setdefault(i, found.tokens) == found.tokens
                seconds[name][i].append(found.timings.decode)
                if round_ == 0:
                    decoded = [step for step in found.steps if step.tokens]
                    by = [step.by or FIXED.get(name, "") if step.drafted else "" for step in decoded]
                    own = [(kind, step.drafted, step.batch) for kind, step in zip(by, decoded, strict=True)]
                    own[: len(observed)] = observed  # empty but for `adaptive`; the last step of a request is not observed
                    steps[name].update(own)
    costs = measures_of(lm.model).recall(("costs", Adaptive()))
    extra = {type(option.drafter).__name__: option.extra for option in costs.options} | {"": [costs.plain]}
    return {
        "set": prompts,
        "seconds": {name: [min(times) for times in each] for name, each in seconds.items()},
        "steps": {name: [[*key, n] for key, n in each.items()] for name, each in steps.items()},
        "forwards": costs.forwards[:65],
        "extra": extra,
    }


def table(runs: list[dict]) -> None:
    """Print for each set the best fixed strategies, and what `adaptive` reaches of them, process by process."""
    unit = [each["forwards"][1] for each in runs]
    forwards = [statistics.median(r["forwards"][n] / u for r, u in zip(runs, unit, strict=True)) for n in range(65)]
    extra = {
        kind: [
            statistics.median(r["extra"][kind][n] / u for r, u in zip(runs, unit, strict=True)) for n in range(len(sizes))
        ]
        for kind, sizes in runs[0]["extra"].items()
    }
    print("forwards of 1, 2, 4, 8, 16 rows:", [round(forwards[n], 2) for n in (1, 2, 4, 8, 16)])
    print("beside the forward:", {kind: [round(each[n], 2) for n in SIZES if n < len(each)] for kind, each in extra.items()})
    for name in sorted({each["set"] for each in runs}):
        of_set = [each for each in runs if each["set"] == name]
        model, wall, versus_plain = [], [], []
        ms: dict[str, float] = {}
        for each in of_set:
            for strategy, steps in each["steps"].items():  # those of a fixed strategy are the same in every process
                kinds = [(extra[kind][min(n, len(extra[kind]) - 1)], rows, count) for kind, n, rows, count in steps]
                ms[strategy] = sum(count * (forwards[rows] + beside) for beside, rows, count in kinds)
            seconds = {strategy: sum(times) for strategy, times in each["seconds"].items()}
            best = min(FIXED.keys() & ms.keys(), key=ms.__getitem__)
            model.append(ms[best] / ms["adaptive"])
            wall.append(min(seconds[fixed] for fixed in seconds if fixed in FIXED) / seconds["adaptive"])
            versus_plain.append(seconds["plain"] / seconds["adaptive"])
        print(f"{name}: {len(of_set)} processes; best by model time {best} ({ms['plain'] / ms[best]:.2f} of plain)")
        for label, found in (("model time", model), ("least times", wall), ("least times over plain", versus_plain)):
            print(f"  {label}: median {statistics.median(found):.3f}, {' '.join(f'{each:.2f}' for each in sorted(found))}")


def main() -> None:
    """Run one process, or print the table of several."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompts", nargs="?", choices=BUNDLED)
    parser.add_argument("--of", nargs="+", type=Path, default=[])
    parser.add_argument("--against", default=",".join(FIXED), metavar="NAMES", help="fixed strategies, plain among them")
    parser.add_argument("-n", "--max-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    if given.of:
        table([json.loads(path.read_text()) for path in given.of])
    else:
        print(json.dumps(run(given.prompts, given.against.split(","), given.max_tokens, given.rounds)))


if __name__ == "__main__":
    main()
