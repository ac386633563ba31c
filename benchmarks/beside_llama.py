"""Likelihoods of a text beside llama.cpp's, for the same file, token ids and windows; and rates.

python benchmarks/beside_llama.py model.gguf --perplexity build/bin/llama-perplexity [--text FILE] [--windows 20]
python benchmarks/beside_llama.py model.gguf --bench build/bin/llama-bench [-t 2] [--turns 3] [-d 0,4096]

`llama-perplexity` splits the text into windows, reads each on its own and scores the tokens of its second half. It writes
the log-probabilities there, in 65,535 steps from the largest one to 16 below it, which this script reads back. Less likely
tokens are left out of the KL divergence, and a scored one counts as that likely. The text is by default the source of
Python's own module `inspect`. Prints the perplexity of both programs, how often both have the same most likely token, and
the mean KL divergence of dflash's distribution from llama.cpp's.

With `--bench`, processes of `dflash bench` and of llama-bench take turns; prints the medians of their tokens a second, and
the most MiB that each process had in pages of 2 MiB, of mapped files and of memory. `--no-mmap` goes to both programs.
"""

import argparse
import inspect
import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
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


def run(words, huge):
    """Return what a process prints as JSON. huge: most kB in pages of 2 MiB of files and of memory, by name, raised here."""
    with tempfile.TemporaryFile("w+") as printed:
        with subprocess.Popen(list(map(str, words)), stdout=printed, stderr=subprocess.DEVNULL) as process:
            while process.poll() is None:
                with suppress(OSError):  # the process may have ended
                    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
                    sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines[1:]}
                    huge |= {name: max(sizes.get(name, 0), huge.get(name, 0)) for name in ("FilePmdMapped", "AnonHugePages")}
                time.sleep(1)
        assert process.returncode == 0, f"{words[0]} ended with {process.returncode}"
        printed.seek(0)
        return json.load(printed)


def samples_of_llama(arguments, huge):
    """Return the rates of one process of llama-bench for the prompt, and of one for the outputs, by name."""
    found = {}
    for lengths in ([arguments.prompt, 0, "0"], [0, arguments.generate, arguments.depth]):
        words = [arguments.bench, "-m", arguments.model, "-t", arguments.threads, "-r", arguments.repeat, "-o", "json"]
        words += ["-p", lengths[0], "-n", lengths[1], "-d", lengths[2], *([] if arguments.mmap else ["-lm", "none"])]
        for test in run(words, huge) if lengths[0] or lengths[1] else ():
            found[name_of(test["n_prompt"], test["n_gen"], test["n_depth"])] = test["samples_ts"]
    return found


def samples_of_dflash(arguments, huge):
    """Return the rates of one process of `dflash bench`, by name."""
    words = [sys.executable, "-m", "dflash", "bench", arguments.model, "--device", "cpu", "-t", arguments.threads, "--json"]
    words += ["-p", arguments.prompt, "-n", arguments.generate, "-d", arguments.depth, "-r", arguments.repeat]
    found = run([*words, "--mmap" if arguments.mmap else "--no-mmap"], huge)["rates"]
    return {name.replace(" @ d", " after "): rate["samples"] for name, rate in found.items()}


def name_of(n_prompt, n_output, depth):
    """Return the name of a rate."""
    return (f"pp{n_prompt}" if n_prompt else f"tg{n_output}") + f" after {depth}" * bool(depth)


def rates(arguments):
    """Print the medians of the tokens a second of both programs, whose processes take turns, and the range of ratios."""
    medians = {}
    for turn in range(arguments.turns):
        sides = {"dflash": samples_of_dflash, "llama.cpp": samples_of_llama}
        for side in list(sides)[:: 1 if turn % 2 else -1]:
            huge = {}
            found = {name: statistics.median(samples) for name, samples in sides[side](arguments, huge).items()}
            shown = [f"{name} {rate:.1f}" for name, rate in found.items()]
            shown += [f"{name} {size >> 10} MiB" for name, size in huge.items()]
            print(f"turn {turn + 1}, {side}: {', '.join(shown)}", flush=True)
            for name, rate in found.items():
                medians.setdefault(name, {}).setdefault(side, []).append(rate)
    for name, sides in medians.items():
        ours, theirs = (statistics.median(sides[side]) for side in ("dflash", "llama.cpp"))
        ratios = [a / b for a, b in zip(sides["dflash"], sides["llama.cpp"], strict=True)]
        print(f"{name}: {ours:.1f}, llama.cpp {theirs:.1f}: {ours / theirs:.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    programs = parser.add_mutually_exclusive_group(required=True)
    programs.add_argument("--perplexity", help="path of llama-perplexity")
    programs.add_argument("--bench", help="path of llama-bench")
    parser.add_argument("--turns", type=int, default=3, help="turns of --bench (3)")
    parser.add_argument("--no-mmap", dest="mmap", action="store_false", help="read the file into memory")
    parser.add_argument("-p", "--prompt", type=int, default=512, help="tokens of the prompt of --bench (512)")
    parser.add_argument("-n", "--generate", type=int, default=128, help="tokens of the output of --bench (128)")
    parser.add_argument("-d", "--depth", default="0,4096", help="context tokens before the output of --bench (0,4096)")
    parser.add_argument("-r", "--repeat", type=int, default=3, help="repetitions in each process of --bench (3)")
    parser.add_argument("--text", default=inspect.__file__, help="file of the text")
    parser.add_argument("--context", type=int, default=1024, help="tokens of a window (1024)")
    parser.add_argument("--windows", type=int, default=20, help="windows (20)")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--kv", default="f16", help="types of dflash's KV cache, separated by commas (f16)")
    parser.add_argument("--logits", type=Path, help="file of llama.cpp's logits, kept for later; read if it is there")
    arguments = parser.parse_args()
    if arguments.bench:
        rates(arguments)
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
