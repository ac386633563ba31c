"""Hashes of tokens, logits and log-probabilities under every strategy, so that the outputs of two commits can be compared.

python benchmarks/identity.py [--device cuda] > rows.txt             # in each commit; then diff
python benchmarks/identity.py --against OTHER_CHECKOUT [--device cuda]

With ``--against`` both checkouts run this file and the differing rows are printed; the exit status is their number, at most
`MAX_STATUS`. The other commit may be older: this script uses only `dflash.load`, `LM.generate` (``strategy``, ``max_tokens``
and the fields of `Sampling`), `LM.encode`, `LM.logits`, `LM.log_probabilities`, `Generation.tokens`, `.logprobs` and
`.steps` (``drafted``, ``accepted``), and names of strategies, `Strategy`, `DraftModel`, `Chain` and `Tree`. A refusal is
a row, too. Kernels that a checkout has not compiled yet are compiled first, which takes minutes.

Models are the demo of each checkout and the random models of ``tests/data/golden`` beside this file.
"""

import argparse
import functools
import hashlib
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from eagle_heads import CASES, TARGET, write_speculators
from packed_models import unpack_golden_models

ROOT = Path(__file__).resolve().parents[1]
unpack_golden_models()
GOLDEN = sorted((ROOT / "tests" / "data" / "golden").glob("*/*.gguf"))
MAX_STATUS = 100
"""Largest exit status for differing rows; 125 means that a checkout could not be run."""

TEXTS = {
    "code": "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "prose": "Once upon a time there was a lighthouse keeper who",
    "repeats": "1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2,",
    "chat": [{"role": "user", "content": "Write a function that checks whether a number is prime."}],
}
SAMPLINGS = {
    "greedy": {"temperature": 0.0},
    "T 0.7": {"temperature": 0.7, "seed": 5},
    "penalties": {
        "temperature": 1.0,
        "top_p": 0.95,
        "top_k": 40,
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.2,
        "seed": 6,
    },
}
PLAIN = ["plain", "lookup", "suffix", "suffix-shared"]
MTP = ["mtp", "mtp:3", "mtp-tree:8", "first(lookup, mtp:2)", "adaptive(mtp, lookup)"]
DRAFTS = ["dflash", "dflash:3", "dspark:4", "ddtree:22", "ddtree:48", "first(lookup, dflash:8)", "adaptive"]
OWN_DRAFT = ["draft-model:3", "draft-model, tree of 9", "first(lookup, draft-model)", "adaptive(draft-model, lookup)"]
"""Strategies in which a model is its own draft model."""
EAGLE = ["eagle3:4", "eagle3-tree:9"]
"""Strategies of a random head for the model `TARGET`."""


@functools.cache
def head():
    """Return the folder of a random EAGLE-3 head."""
    return write_speculators(Path(tempfile.mkdtemp()) / "head", **CASES["llama"])


def strategy(name, path):
    """Return what `LM.generate` takes for a name of the lists above."""
    from dflash import Adaptive, Chain, DraftModel, FirstOf, PromptLookup, Strategy, Tree

    if name in EAGLE:
        from dflash import Eagle3

        return Strategy(Eagle3(str(head())), Chain(4) if name == EAGLE[0] else Tree(9))
    own = {
        "draft-model:3": lambda draft: Strategy(draft, Chain(3)),
        "draft-model, tree of 9": lambda draft: Strategy(draft, Tree(9)),
        "first(lookup, draft-model)": lambda draft: Strategy(FirstOf(PromptLookup(), draft), Chain(4)),
        "adaptive(draft-model, lookup)": lambda draft: Strategy(Adaptive(draft, PromptLookup())),
    }
    return own[name](DraftModel(str(path))) if name in own else name


def digest(value):
    """Return 16 hexadecimal digits for an array, or for numbers in lists and tuples."""
    content = value.tobytes() if hasattr(value, "tobytes") else repr(value).encode()
    return hashlib.sha256(content).hexdigest()[:16]


def plain_numbers(logprobs):
    """Convert log-probabilities to tuples, whose text does not depend on names of classes."""
    return [(each.token, each.logprob, [tuple(pair) for pair in each.top]) for each in logprobs]


def rows(path, device, n, only):
    """Yield ``label, digest`` of every comparison with one model whose label, but for its last part, contains `only`."""
    import dflash
    import dflash.decode.drafters
    from dflash.decode.registry import words

    model = "demo" if path is None else path.stem
    plain = [name for name in PLAIN if name in words()]  # an older checkout may lack some
    names = [*plain, *(MTP if path is None or "mtp" in model else []), *(DRAFTS if path is None else OWN_DRAFT)]
    names += EAGLE if model == TARGET and "eagle3" in words() else []
    lm, prompts = None, {}

    def load():
        nonlocal lm, prompts
        lm = dflash.load("demo" if path is None else path, device=device, threads=1, context=1024, sequences=4)
        draws = random.Random(0)
        random_ids = {f"random {size}": [draws.randrange(1, 200) for _ in range(size)] for size in (5, 70)}
        prompts |= {name: lm.encode(text) for name, text in TEXTS.items()} if path is None else random_ids

    def generations(prompt, sampling, name):
        settings = {"strategy": strategy(name, path), "max_tokens": n, "logprobs": 3, **SAMPLINGS[sampling]}
        ids = list(prompts.values()) if prompt == "batch" else [prompts[prompt]]
        return lm.generate(ids, **settings)

    def tokens(*which):
        made = generations(*which)
        found = {"tokens": [each.tokens for each in made]}
        found["log-probabilities"] = [plain_numbers(each.logprobs) for each in made]
        if not which[-1].startswith("adaptive"):  # which drafts it measures and chooses depends on the speed of the machine
            found["drafts"] = [[(step.drafted, step.accepted) for step in each.steps] for each in made]
        return found

    def scores(prompt):
        return {"logits": lm.logits(prompts[prompt]), "text log-probabilities": lm.log_probabilities(prompts[prompt])}

    labels = list(TEXTS) if path is None else ["random 5", "random 70"]
    cases = [((label,), scores) for label in labels]
    cases += [((label, sampling, name), tokens) for label in (*labels, "batch") for sampling in SAMPLINGS for name in names]
    try:
        for label, run in cases:
            prefix = " | ".join((model, *label, ""))
            if only in prefix:
                if lm is None:
                    load()
                try:
                    found = run(*label)
                except dflash.DFlashError as error:
                    found = {"refused": type(error).__name__}
                yield from ((f"{prefix}{what}", digest(value)) for what, value in found.items())
    finally:
        if lm is not None:
            lm.close()


def show(arguments):
    """Print the rows of the `dflash` that Python finds."""
    import dflash

    print(f"# {Path(dflash.__file__).parent}")
    for path in (None, *GOLDEN):
        for label, value in rows(path, arguments.device, arguments.tokens, arguments.only):
            print(f"{label}: {value}", flush=True)


def compare(arguments):
    """Run both checkouts at the same time; print differing rows and return their number."""
    words = ["--device", arguments.device, "--tokens", str(arguments.tokens), "--only", arguments.only]
    folders = [ROOT, arguments.against.resolve()]
    children = [
        subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), *words],
            cwd=folder,  # processes that a checkout starts look there first
            env={**os.environ, "PYTHONPATH": str(folder)},
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        for folder in folders
    ]
    outputs = [child.communicate()[0].splitlines() for child in children]
    for folder, child, output in zip(folders, children, outputs, strict=True):
        if child.returncode or output[:1] != [f"# {folder / 'dflash'}"]:
            print(f"{folder}: could not be run as a checkout of dflash: exit status {child.returncode}, {output[:1]}")
            return 125
    found = differences(*(output[1:] for output in outputs))
    for line in found:
        print(line)
    print(f"{len(outputs[0]) - 1} rows, {len(found)} differ")
    return min(len(found), MAX_STATUS)


def differences(one, other):
    """Return a line for each label whose digest differs or that only one of two lists of rows has."""
    one, other = (dict(row.rsplit(": ", 1) for row in side) for side in (one, other))
    labels = dict.fromkeys([*one, *other])
    return [
        f"{label}: {one.get(label, 'no row')}, other {other.get(label, 'no row')}"
        for label in labels
        if one.get(label) != other.get(label)
    ]


def main():
    """Print rows, or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="another checkout to compare with")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--tokens", type=int, default=32, metavar="N", help="output tokens of each text (32)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only rows whose label contains it, as 'demo | code | '")
    arguments = parser.parse_args()
    return show(arguments) if arguments.against is None else compare(arguments)


if __name__ == "__main__":
    sys.exit(main())
