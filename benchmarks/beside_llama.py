"""Likelihoods of a text beside llama.cpp's, for the same file, token ids and windows; and speed on a busy machine.

python benchmarks/beside_llama.py model.gguf --perplexity build/bin/llama-perplexity [--text FILE] [--windows 20]
python benchmarks/beside_llama.py model.gguf --bench build/bin/llama-bench [--turns 3] [-p 512] [-n 64]

`llama-perplexity` splits the text into windows, reads each on its own and scores the tokens of its second half. It writes
the log-probabilities there, in 65,535 steps from the largest one to 16 below it, which this script reads back. Less likely
tokens are left out of the KL divergence, and a scored one counts as that likely. The text is by default the source of
Python's own module `inspect`. Prints the perplexity of both programs, how often both have the same most likely token, and
the mean KL divergence of dflash's distribution from llama.cpp's.

With `--bench`, prints tokens for each CPU second of one thread, in turns: a busy machine disturbs it less than the clock.
"""

import argparse
import inspect
import subprocess
import tempfile
import time
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


def cpu_seconds(words):
    """Return the CPU seconds of a program."""
    import resource  # Windows has none

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def speeds(arguments):
    """Print tokens for each CPU second of one thread. For llama-bench it is the difference of three repetitions and one."""
    n_prompt, n_output = arguments.prompt, arguments.generate
    lm = dflash.load(arguments.model, device="cpu", threads=1, context=n_prompt + n_output + 64, sequences=1)
    ids = np.random.default_rng(0).integers(100, 20000, n_prompt).tolist()

    def ours(n, n_tokens):
        began = time.process_time()
        lm.generate(ids[:n], max_tokens=n_tokens, ignore_eos=True, temperature=0)
        return time.process_time() - began

    def theirs(*lengths):
        words = [arguments.bench, "-m", arguments.model, "-t", "1", "--no-warmup", *map(str, lengths), "-r"]
        return (cpu_seconds([*words, "3"]) - cpu_seconds([*words, "1"])) / 2

    ours(16, 8)
    for _ in range(arguments.turns):
        prompt, output = theirs("-p", n_prompt, "-n", 0), theirs("-p", 0, "-n", n_output)
        print(f"llama.cpp: prompt {n_prompt / prompt:.1f}, output {n_output / output:.1f}", flush=True)
        prompt, output = ours(n_prompt, 1), ours(16, n_output + 1) - ours(16, 1)
        print(f"dflash: prompt {n_prompt / prompt:.1f}, output {n_output / output:.1f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    programs = parser.add_mutually_exclusive_group(required=True)
    programs.add_argument("--perplexity", help="path of llama-perplexity")
    programs.add_argument("--bench", help="path of llama-bench")
    parser.add_argument("--turns", type=int, default=3, help="turns of --bench (3)")
    parser.add_argument("-p", "--prompt", type=int, default=512, help="tokens of the prompt of --bench (512)")
    parser.add_argument("-n", "--generate", type=int, default=64, help="tokens of the output of --bench (64)")
    parser.add_argument("--text", default=inspect.__file__, help="file of the text")
    parser.add_argument("--context", type=int, default=1024, help="tokens of a window (1024)")
    parser.add_argument("--windows", type=int, default=20, help="windows (20)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kv", default="f16", help="types of dflash's KV cache, separated by commas (f16)")
    parser.add_argument("--logits", type=Path, help="file of llama.cpp's logits, kept for later; read if it is there")
    arguments = parser.parse_args()
    if arguments.bench:
        speeds(arguments)
        return
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
