"""What tokens of 16 bits cost on a CPU: logits of the demo with and without, over a text in this repository.

    python benchmarks/token_rounding.py

Products with K-quants take the float32 kernels of other formats once their integer kernels are not to be chosen.
"""

from pathlib import Path

import numpy as np

import dflash
from dflash.kernels import linear

TEXTS = "README.md", "docs/architecture.md"
CHARACTERS = 9000


def log_probabilities(text):
    """Return the logits of a text, and their log-probabilities."""
    with dflash.load("demo", device="cpu", kv="f32") as lm:
        logits = np.asarray(lm.logits(text), np.float64)
    largest = logits.max(axis=-1, keepdims=True)
    return logits, logits - largest - np.log(np.exp(logits - largest).sum(axis=-1, keepdims=True))


def main():
    """Print divergence, RMS difference and changed choices."""
    root = Path(__file__).parents[1]
    text = "".join((root / name).read_text()[:6000] for name in TEXTS)[:CHARACTERS]
    rounded, rounded_log = log_probabilities(text)
    linear.FORMATS = {name: made._replace(integers=None) for name, made in linear.FORMATS.items()}
    exact, exact_log = log_probabilities(text)
    divergence = (np.exp(exact_log) * (exact_log - rounded_log)).sum(axis=-1)
    rms = np.sqrt(np.mean((rounded - exact) ** 2) / np.mean(exact**2))
    others = (rounded.argmax(axis=-1) != exact.argmax(axis=-1)).sum()
    print(f"{len(exact)} tokens: divergence {divergence.mean():.2g}, at most {divergence.max():.2g}")
    print(f"RMS difference of logits {rms:.2g} of their RMS; {others} other largest logits")


if __name__ == "__main__":
    main()
