"""Likelihoods of a text beside llama.cpp's, for the same file, token ids and windows.

python benchmarks/beside_llama.py model.gguf --perplexity build/bin/llama-perplexity [--text FILE] [--windows 20]

`llama-perplexity` splits the text into windows, reads each on its own and scores the tokens of its second half. It writes
the log-probabilities there, in 65,535 steps from the largest one to 16 below it, which this script reads back. Less likely
tokens are left out of the KL divergence, and a scored one counts as that likely. The text is by default the source of
Python's own module `inspect`. Prints the perplexity of both programs, how often both have the same most likely token, and
the mean KL divergence of dflash's distribution from llama.cpp's.
"""

import argparse
import inspect
import subprocess
import tempfile
from pathlib import Path

import numpy as np

import dflash


def recorded(path):
    """Return the token ids of each window that a file holds, its rows of scored tokens, and the size of the vocabulary."""
    with path.open("rb") as file:
        assert file.read(8) == b"_logits_"
        n_context, n_vocab, n_windows = np.fromfile(file, np.int32, 3).tolist()
        ids = np.fromfile(file, np.int32, n_windows * n_context).reshape(n_windows, n_context)
        start, n_rows = file.tell(), n_context - 1 - n_context // 2
    columns = 4 + (n_vocab + 1) // 2 * 2
    n_windows = min(n_windows, (path.stat().st_size - start) // (2 * n_rows * columns))  # fewer if it was stopped
    rows = np.memmap(path, np.uint16, "r", start, (n_windows, n_rows, columns))
    return ids[:n_windows], rows, n_vocab


def log_softmax(logits):
    """Return log-probabilities in float64."""
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def compare(lm, ids, rows, n_vocab, block=64):
    """Return for each scored token: both negative log-likelihoods, equality of the most likely tokens, and KL divergence."""
    found = []
    for n, (window, recorded_rows) in enumerate(zip(ids, rows, strict=True)):
        first = len(window) // 2
        logits = lm.logits(window[:-1].tolist())[first:]
        for at in range(0, len(logits), block):
            row = np.ascontiguousarray(recorded_rows[at : at + block])
            scale, least = row[:, :4].copy().view(np.float32).T[..., None]
            steps = row[:, 4 : 4 + n_vocab]
            theirs = scale * steps.astype(np.float64) + least
            ours = log_softmax(logits[at : at + block, :n_vocab])
            tokens, each = window[first + 1 + at :][: len(ours)], np.arange(len(ours))
            kl = np.where(steps > 0, np.exp(theirs) * (theirs - ours), 0).sum(-1)
            same = ours.argmax(-1) == theirs.argmax(-1)
            found.append(np.stack([-ours[each, tokens], -theirs[each, tokens], same, kl]))
        so_far = np.concatenate(found, 1).mean(1)
        print(f"window {n + 1}: perplexity {np.exp(so_far[0]):.5f}, llama.cpp {np.exp(so_far[1]):.5f}", flush=True)
    return np.concatenate(found, 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--perplexity", required=True, help="path of llama-perplexity")
    parser.add_argument("--text", default=inspect.__file__, help="file of the text")
    parser.add_argument("--context", type=int, default=1024, help="tokens of a window (1024)")
    parser.add_argument("--windows", type=int, default=20, help="windows (20)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kv", default="f16", help="types of dflash's KV cache, separated by commas (f16)")
    parser.add_argument("--logits", type=Path, help="file of llama.cpp's logits, kept for later; read if it is there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.logits or Path(folder) / "logits"
        if not path.exists():
            words = [arguments.perplexity, "-m", arguments.model, "-f", arguments.text, "-c", arguments.context]
            words += ["-t", arguments.threads, "--chunks", arguments.windows, "--kl-divergence-base", path]
            subprocess.run(list(map(str, words)), check=True)
        ids, rows, n_vocab = recorded(path)
        for kv in arguments.kv.split(","):
            lm = dflash.load(arguments.model, context=arguments.context, sequences=1, threads=arguments.threads, kv=kv)
            found = compare(lm, ids, rows, n_vocab)
            lm.close()
            ours, theirs, same, kl = found.mean(1).tolist()
            print(f"KV {kv}: {found.shape[1]} scored tokens in {ids.size}")
            print(f"  perplexity {np.exp(ours):.5f}, llama.cpp {np.exp(theirs):.5f}: {np.expm1(ours - theirs):+.4%}")
            print(f"  same top token {same:.3%}; KL {kl:.3e} nats, 99th percentile {np.quantile(found[3], 0.99):.3e}")


if __name__ == "__main__":
    main()
