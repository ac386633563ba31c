"""Replay recorded drafts through `adaptive` at the prices of a device, and print its share of the best fixed strategy.

python benchmarks/adaptive_replay.py                              # the 27B on an H200, from the recording of the tests
python benchmarks/adaptive_replay.py --record drafts.json         # record the demo's drafts with their scores
python benchmarks/adaptive_replay.py --of drafts.json --on demo   # replay them, here with the prices of a CPU

Random weights accept nothing, so the acceptances are the demo's. The texts of a set come in several orders, since what the
first ones teach decides most.
"""

import argparse
import json
import random
import statistics
import sys
from math import exp
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from replay import PRICES, RECORDED, adaptive_ms, fixed_ms, recorded

import dflash
from dflash.decode.drafters.composite import CompositeState, start_all
from dflash.decode.drafters.dflash import DFlash
from dflash.decode.drafters.mtp import MTP
from dflash.decode.drafters.prompt_lookup import PromptLookup
from dflash.decode.drafting.draft import EMPTY
from dflash.decode.drafting.drafter import Drafter
from dflash.decode.drafting.shapes import Chain, Tree
from dflash.evaluation.prompt_sets import load_prompts

SETS = ("code", "prose", "agent", "copy")
PARTS = {
    "dflash": (DFlash(), Chain(15)),
    "dflash-tree": (DFlash(), Tree(22)),
    "mtp": (MTP(), Chain(7)),
    "lookup": (PromptLookup(n_draft=15), Chain(15)),
}
FIXED = [(None, 0), ("lookup", 7), ("mtp", 1), ("mtp", 3), ("mtp", 7), ("dflash", 7), ("dflash", 15), ("dflash-tree", 22)]


class Recorder(Drafter):
    """Asks all drafters at every position, and verifies nothing."""

    parts = tuple(dict.fromkeys(drafter for drafter, _ in PARTS.values()))

    def start(self, session, model, snapshot=None):  # noqa: ARG002
        """Start all drafters with their shapes."""
        self.state = _RecorderState(start_all([drafter for drafter, _ in PARTS.values()], session, model, None))
        for part, (_, shape) in zip(self.state.parts, PARTS.values(), strict=True):
            part.shape = shape
        return self.state


class _RecorderState(CompositeState):
    def __init__(self, parts):
        super().__init__(parts)
        self.drafts = []

    def propose(self, max_draft):  # noqa: ARG002
        self.drafts.append([part.propose(63) for part in self.parts])
        return EMPTY


def record(path: Path, *, scores: bool) -> None:
    """Write how many tokens of each draft agree with the text that follows it."""
    lm, sets = dflash.load("demo", device="cpu"), {}
    for drafter in Recorder.parts:
        lm.prepare(drafter)
    for name in SETS:
        sets[name] = []
        for case in load_prompts(name):
            recorder = Recorder()
            settings = {"seed": 0, **case.sampling, **case.options}
            tokens = lm.generate(case.prompt, strategy=recorder, recover=(), max_tokens=64, **settings).tokens
            drafts = {each: [] for each in PARTS}
            for at, found in enumerate(recorder.state.drafts):
                for each, draft in zip(PARTS, found, strict=True):
                    node, accepted = -1, 0
                    for token in tokens[at:]:
                        if (node := draft.child(node, token)) < 0:
                            break
                        accepted += 1
                    if each == "lookup":  # its scores follow from the length of the match
                        length = round(1 / (exp(-float(draft.scores[0])) - 1)) if len(draft) else 0
                        drafts[each].append([accepted, len(draft), length] if length else 0)
                    elif scores and draft.scores is not None:
                        drafts[each].append([accepted, len(draft), [round(float(score), 3) for score in draft.scores]])
                    else:
                        drafts[each].append(accepted)
            sets[name].append({"n": len(tokens), "drafts": drafts})
    path.write_text(json.dumps(sets, separators=(",", ":")))


def main() -> None:
    """Record drafts, or print the table of a device."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, metavar="FILE")
    parser.add_argument("--no-scores", action="store_true", help="for devices that keep draft tokens; a small file")
    parser.add_argument("--of", type=Path, default=RECORDED, metavar="FILE")
    parser.add_argument("--on", choices=PRICES, default="27B")
    parser.add_argument("--orders", type=int, default=20)
    given = parser.parse_args()
    if given.record:
        record(given.record, scores=not given.no_scores)
        return
    prices, sets = PRICES[given.on], recorded(given.of)
    for name in SETS:
        fixed = {(each or "plain", most): fixed_ms(sets[name], prices, each, most) for each, most in FIXED}
        best, found = min(fixed, key=fixed.get), []
        for seed in range(given.orders):
            texts = sets[name][:]
            random.Random(seed).shuffle(texts)
            ms = adaptive_ms(texts, prices, {"dflash": 15, "mtp": 7, "lookup": 15}, on_host=given.on == "demo")
            found.append(fixed[best] / ms)
        plain = fixed["plain", 0]
        print(f"{name}: best fixed {best[0]}:{best[1]}, {plain / fixed[best]:.2f} of plain; adaptive of the best:")
        print(f"  median {statistics.median(found):.2f}, least {min(found):.2f}, largest {max(found):.2f}")
        print("  of plain:", ", ".join(f"{each}:{most} {plain / ms:.2f}" for (each, most), ms in fixed.items()))


if __name__ == "__main__":
    main()
