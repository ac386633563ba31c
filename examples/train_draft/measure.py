"""Measure drafts on prompts that were not in their training, greedy and sampled.

python -m train_draft.measure --model FILE [--draft FILE] [--head FILE] [--eagle FOLDER]       in the folder `examples`

`--beside dflash:7 mtp:2` also measures the model's own drafts.
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import dflash
from dflash import MTP, Chain, DFlash, Eagle3, Strategy

from .prompts import SETS


def chains(
    draft: Path | None = None,
    head: Path | None = None,
    eagle: Path | None = None,
    *,
    depths: Sequence[int] = (3, 5, 7),
    vocab: int | None = None,
) -> dict[str, Strategy]:
    """Return chains of some lengths with the files of a draft and heads; `vocab` is the size of the draft vocabulary."""
    found = {}
    if draft is not None:
        found = {f"draft:{n}": Strategy(DFlash(str(draft), draft_vocab=vocab), Chain(n)) for n in depths}
    if head is not None:
        found |= {f"head:{n}": Strategy(MTP(str(head), draft_vocab=vocab), Chain(n)) for n in (1, 2, 3)}
    if eagle is not None:
        found |= {f"eagle3:{n}": Strategy(Eagle3(str(eagle)), Chain(n)) for n in (1, 2, 3)}
    return found


def measure(
    lm: dflash.LM,
    strategies: Mapping[str, Any],
    file: Path,
    *,
    sets: Sequence[str] = SETS,
    prompts: int = 12,
    max_tokens: int = 128,
    temperatures: Sequence[float] = (0.0, 1.0),
    repeat: int = 1,
) -> None:
    """Compare strategies with plain decoding on some sets of prompts; print tables and write the numbers as JSON lines."""
    for name in sets:
        for temperature in temperatures:
            cases = dflash.load_prompts(name)[:prompts]
            sampling = {"temperature": temperature, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
            found = dflash.compare(
                lm, cases, {"plain": "plain"} | dict(strategies), max_tokens=max_tokens, repeat=repeat, **sampling
            )
            print(f"{name}, temperature {temperature:g}\n{found}\n", flush=True)
            with file.open("a") as lines:
                lines.write(json.dumps({"set": name, "temperature": temperature} | found.as_dict()) + "\n")


def cpu_time(
    lm: dflash.LM, strategies: Mapping[str, Any], cases: Sequence[Any], *, max_tokens: int = 128, **sampling: Any
) -> None:
    """Print the CPU time of a token beside plain decoding, in turns: on a machine with other work it says more than rates.

    Waiting threads use CPU time, too, so load the model with ``threads=1``.
    """
    strategies = {"plain": dflash.Strategy.of("plain")} | dict(strategies)
    for strategy in strategies.values():
        lm.generate("import os", strategy=strategy, max_tokens=8)
    sums = {name: [0, 0, 0.0] for name in strategies}
    for i, case in enumerate(cases):
        names = list(strategies)
        for name in names[i % len(names) :] + names[: i % len(names)]:
            settings = {
                "strategy": strategies[name],
                "recover": (),
                "prefix_cache": False,
                "seed": 0,
                **sampling,
                **case.options,
            }
            marks = [time.process_time()]
            for n in (1, max_tokens):  # the first token is for the prompt
                done = lm.generate(case.prompt, max_tokens=n, **settings)
                marks.append(time.process_time())
            seconds = marks[2] - 2 * marks[1] + marks[0]
            steps = sum(bool(step.tokens) for step in done.steps)
            sums[name] = [a + b for a, b in zip(sums[name], (len(done.tokens) - 1, steps - 1, seconds), strict=True)]
    plain = sums["plain"][2] / sums["plain"][0]
    for name, (tokens, steps, seconds) in sums.items():
        each = seconds / tokens
        print(
            f"{name:8} {tokens / steps:.2f} tokens per step, {1e3 * each:6.2f} ms of CPU a token, {plain / each:.2f} x",
            flush=True,
        )


def main() -> None:
    """Measure the files that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--head", type=Path)
    parser.add_argument("--eagle", type=Path)
    parser.add_argument("--beside", nargs="+", default=(), metavar="NAME", help="strategies that are measured, too")
    parser.add_argument("--vocab", type=int, metavar="N", help="draft only the first N tokens of the vocabulary (all)")
    parser.add_argument("--depths", default="3,5,7", help="lengths of the draft's chains (3,5,7)")
    parser.add_argument("--sets", default=",".join(SETS), help="sets of prompts")
    parser.add_argument("--prompts", type=int, default=12, metavar="N", help="prompts of a set (12)")
    parser.add_argument("--tokens", type=int, default=128, metavar="N", help="most tokens of an answer (128)")
    parser.add_argument("--temperatures", default="0,1")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--cpu-time", action="store_true", help="print CPU times instead of rates; use --threads 1")
    parser.add_argument("--out", type=Path, default=Path("measured.jsonl"))
    a = parser.parse_args()
    strategies: dict[str, Any] = {name: name for name in a.beside}
    strategies |= chains(a.draft, a.head, a.eagle, depths=[int(n) for n in a.depths.split(",")], vocab=a.vocab)
    temperatures = [float(each) for each in a.temperatures.split(",")]
    with dflash.load(a.model, device=a.device, threads=a.threads, context=4096) as lm:
        if a.cpu_time:
            for name, temperature in product(a.sets.split(","), temperatures):
                print(f"{name}, temperature {temperature:g}")
                cases = dflash.load_prompts(name)[: a.prompts]
                cpu_time(lm, strategies, cases, max_tokens=a.tokens, temperature=temperature)
            return
        settings = {"prompts": a.prompts, "max_tokens": a.tokens, "temperatures": temperatures, "repeat": a.repeat}
        measure(lm, strategies, a.out, sets=a.sets.split(","), **settings)


if __name__ == "__main__":
    main()
