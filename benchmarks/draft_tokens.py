"""Cost of a reduced draft vocabulary: share of tokens outside of it, and tokens per step that are lost.

python benchmarks/draft_tokens.py MODEL FILE [FILE ...] [--right 0.85]

Simulates decoding with chains. A draft token is accepted with a fixed probability if it is in the draft vocabulary.
"""

import argparse
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from dflash.decode.drafters.vocab_tracker import VocabTracker
from dflash.model.draft.vocabulary import Vocabulary, common
from dflash.model.gguf.file import GGUFFile
from dflash.model.text.tokenizer import Tokenizer

FIRST = 16_384, 32_768, 65_536
PROMPT, MOST = 300, 6000


def steps_of(text, known, which, draws, depth):
    """Simulate the steps of one text; return the index of the draft vocabulary that each step used, None for all tokens."""
    done, steps = text[:PROMPT], []
    while len(done) < len(text):
        one, at = which(done), len(done)
        end = min(at + depth, len(text))
        while at < end and draws[at] and (one is None or known[one].has(text[at])):
            at += 1
        done += text[len(done) : at + 1]
        steps.append(one)
    return steps


def main():
    """Print shares of tokens, then tokens per step for each choice of the draft vocabulary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a GGUF file; only its tokenizer is read")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--right", type=float, default=0.85, metavar="P", help="acceptance probability of a draft token")
    given = parser.parse_args()
    file = GGUFFile.open(given.model)
    tokenizer = Tokenizer.from_gguf(file.metadata)
    model = SimpleNamespace(device="cpu", weights=file, config=SimpleNamespace(n_vocab=tokenizer.n_vocab))
    texts = [tokenizer.encode(path.read_text(encoding="utf-8")) for path in given.files]
    some = common(model)
    if not some:
        parser.error(f"{given.model} has {tokenizer.n_vocab:,} tokens: too few for a reduced draft vocabulary")
    ways = {"all tokens": ((), VocabTracker(()).select), "adapted to the text": (some, None)}
    ways |= {f"the first {n:,}": ([Vocabulary((slice(0, n), *some[0].parts[1:]))], lambda _: 0) for n in FIRST}
    print(f"{sum(map(len, texts)):,} tokens; share outside")
    for known in (*(ways[f"the first {n:,}"][0][0] for n in FIRST), *some):
        print(
            f"  the first {known.parts[0].stop:,}: {1 - np.mean([known.has(token) for text in texts for token in text]):.2%}"
        )
    texts = [text[:MOST] for text in texts if len(text) > 2 * PROMPT]
    draws = [np.random.default_rng(i).random(len(text)) < given.right for i, text in enumerate(texts)]
    n = sum(len(text) - PROMPT for text in texts)
    for depth in (15, 3):
        for name, (known, which) in ways.items():
            runs = [
                steps_of(t, known, which or VocabTracker(known).select, d, depth) for t, d in zip(texts, draws, strict=True)
            ]
            steps = [one for run in runs for one in run]
            shares = ", ".join(f"{steps.count(one) / len(steps):.0%}" for one in (*range(len(known)), None))
            print(
                f"  chains of {depth}, {name}: {n / len(steps):.3f} tokens per step; shares of the steps {shares}",
                flush=True,
            )


if __name__ == "__main__":
    main()
