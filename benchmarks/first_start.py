"""Measure the first start of the demo: `dflash run` with an empty cache of kernels, beside a start with a full one.

Prints the seconds of the whole process, and the CPU seconds of it and its children, which depend less on what else runs.
Usage: ``python benchmarks/first_start.py [-r N] [--cores N] [DFLASH_FOLDER ...]``; several folders (checkouts) take turns.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import monotonic

PROMPT = "Write a Python function named is_prime that checks whether a number is prime."
HERE = Path(__file__).parents[1]


def run(folder: Path, cache: str) -> tuple[float, float]:
    """Answer a prompt in a new process, and return its seconds and CPU seconds."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": cache, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-m", "dflash", "run", "demo", PROMPT, "--no-think", "--device", "cpu"]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), monotonic()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=cache)
    seconds, after = monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measure all folders in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", metavar="DFLASH_FOLDER", nargs="*", type=Path, default=[HERE])
    parser.add_argument("-r", "--repeat", type=int, default=3, metavar="N", help="turns (3)")
    parser.add_argument("--cores", type=int, metavar="N", help="cores that the processes may run on (all)")
    arguments = parser.parse_args()
    if arguments.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cores])
    found: dict[tuple[Path, str], list[tuple[float, float]]] = {}
    for _ in range(arguments.repeat):
        for folder in arguments.folders:
            with tempfile.TemporaryDirectory() as cache:
                for kind in ("first", "second"):
                    found.setdefault((folder, kind), []).append(run(folder.resolve(), cache))
    print("| folder | start | seconds | CPU seconds |\n| --- | --- | ---: | ---: |")
    for (folder, kind), times in found.items():
        wall, cpu = (f"{median(column):.1f} ({min(column):.1f} to {max(column):.1f})" for column in zip(*times, strict=True))
        print(f"| {folder} | {kind} | {wall} | {cpu} |")


if __name__ == "__main__":
    main()
