"""Perplexity of the demo with each type of the KV cache, and how far its predictions are from those with float32.

python benchmarks/kv_types.py [--model demo] [--tokens 2048] [--texts 12]

The texts are the pages in ``docs/`` and modules of this package, cut to ``--tokens`` tokens each; the demo was not trained
on them. The Kullback-Leibler divergence of each position is ``sum p log(p / q)`` in nats, with p from the float32 cache.
"""

import argparse
from pathlib import Path

import numpy as np

import dflash
from dflash.kernels.ragged import PAGE

ROOT = Path(__file__).resolve().parents[1]
TYPES = "f32", "f16", "q8_0", "f16/q8_0", "q8_0/f16", "q8_0/q4_0", "q4_0"


def texts(lm, n_tokens, count):
    """Return token ids of texts of exactly `n_tokens` tokens, pages and modules in turn."""
    pages = sorted(ROOT.glob("docs/*.md"))
    modules = sorted(ROOT.glob("dflash/**/*.py"), key=lambda path: -path.stat().st_size)
    found = []
    for path in (path for pair in zip(pages, modules, strict=False) for path in pair):
        ids = lm.encode(path.read_text())
        if len(ids) >= n_tokens:
            found.append(ids[:n_tokens])
    return found[:count]


def log_softmax(logits):
    """Return natural log-probabilities; the sums are float64."""
    logits = logits - logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True, dtype=np.float64)).astype(np.float32)


def compared(mine, truth, ids):
    """Return loss, divergence from the truth and agreement of first choices at the positions of a text."""
    loss = -mine[np.arange(len(ids) - 1), ids[1:]]
    far = (np.exp(truth) * (truth - mine)).sum(axis=-1, dtype=np.float64)
    return loss, far, mine.argmax(axis=-1) == truth.argmax(axis=-1)


def main():
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--texts", type=int, default=12)
    arguments = parser.parse_args()
    models = {kv: dflash.load(arguments.model, device="cpu", kv=kv, context=arguments.tokens, sequences=1) for kv in TYPES}
    losses = {kv: [] for kv in TYPES}
    distances, agree = ({kv: [] for kv in TYPES} for _ in range(2))
    ids_of = texts(models["f32"], arguments.tokens, arguments.texts)
    for ids in ids_of:
        truth = None
        for kv, lm in models.items():
            mine = log_softmax(lm.logits(ids))
            truth = mine if truth is None else truth
            for found, each in zip((losses, distances, agree), compared(mine, truth, ids), strict=True):
                found[kv].append(each)
    print(f"{len(ids_of)} texts of {arguments.tokens} tokens\n")
    print("| KV | bytes per token | perplexity | mean KL, nats | 99 % | same first choice |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for kv, lm in models.items():
        far = np.concatenate(distances[kv])
        print(
            f"| {kv} | {lm.model.pools.page_bytes // PAGE:,} | {np.exp(np.mean(losses[kv])):.4f} | {far.mean():.2e} | "
            f"{np.quantile(far, 0.99):.2e} | {np.mean(agree[kv]):.2%} |"
        )
    for lm in models.values():
        lm.close()


if __name__ == "__main__":
    main()
