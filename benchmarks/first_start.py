"""Measure the first start of the demo: `dflash run` with an empty cache of kernels, beside starts after it. Linux only.

Prints the seconds until the first byte of the answer, the CPU seconds of all processes until then, which depend less on what
else runs, and the seconds of the whole process. Later starts: at once, while processes may still compile, and after them.
Usage: ``python benchmarks/first_start.py [-r N] [--cores N] [DFLASH_FOLDER ...]``; several folders (checkouts) take turns.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import monotonic, sleep

PROMPT = "Write a Python function named is_prime that checks whether a number is prime."
HERE = Path(__file__).parents[1]


def processes(session: int) -> Iterator[float]:
    """Yield the CPU seconds of each process of a session that runs, its ended children included."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            yield sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def run(folder: Path, cache: str, sessions: list[int]) -> tuple[float, float, float]:
    """Answer a prompt in a new process; return seconds and CPU seconds to the first byte, and seconds to the end.

    sessions: the session of the process is added.
    """
    environment = {**os.environ, "NUMBA_CACHE_DIR": cache, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-m", "dflash", "run", "demo", PROMPT, "--no-think", "--device", "cpu"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    began = monotonic()
    with subprocess.Popen(command, env=environment, cwd=cache, start_new_session=True, **pipes) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        first, cpu = monotonic() - began, sum(processes(process.pid))
        process.stdout.read()
    end = monotonic() - began
    if process.returncode:
        raise SystemExit(f"{folder}: {' '.join(command)} ended with status {process.returncode}")
    sessions.append(process.pid)
    return first, cpu, end


def main() -> None:
    """Measure all folders in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", metavar="DFLASH_FOLDER", nargs="*", type=Path, default=[HERE])
    parser.add_argument("-r", "--repeat", type=int, default=3, metavar="N", help="turns (3)")
    parser.add_argument("--cores", type=int, metavar="N", help="cores that the processes may run on (all)")
    arguments = parser.parse_args()
    if arguments.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cores])
    found: dict[tuple[Path, str], list[tuple[float, float, float]]] = {}
    for _ in range(arguments.repeat):
        for folder in arguments.folders:
            with tempfile.TemporaryDirectory() as cache:
                sessions = list[int]()
                for kind in ("first", "second, at once", "third, later"):
                    while kind == "third, later" and any(list(processes(session)) for session in sessions):
                        sleep(0.1)
                    found.setdefault((folder, kind), []).append(run(folder.resolve(), cache, sessions))
    print("| folder | start | seconds to the first byte | CPU seconds to it | seconds to the end |")
    print("| --- | --- | ---: | ---: | ---: |")
    for (folder, kind), times in found.items():
        columns = (f"{median(each):.1f} ({min(each):.1f} to {max(each):.1f})" for each in zip(*times, strict=True))
        print(f"| {folder} | {kind} | {' | '.join(columns)} |")


if __name__ == "__main__":
    main()
