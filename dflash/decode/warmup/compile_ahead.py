"""Compile the kernels of a model in several processes at once, before its first forward.

Compiling holds the interpreter lock for most of its time, so threads would not help. The processes put code into the cache
on disk, from which this one loads it.
"""

import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from dflash.kernels.compiling import Progress
from dflash.kernels.cpu import warm_marker
from dflash.model.loading.target import HostSettings, kernels_of
from dflash.model.state.budget import n_cores

_log = logging.getLogger(__name__)

MAX_PROCESSES = 4
"""Each takes about 0.4 GB of memory, and the largest kernel alone takes a sixth of the time of all."""


def compile_ahead(model: HostSettings) -> None:
    """Fill the cache with the kernels that a model needs on the CPU, at its first start on a machine.

    Without effect on a single core. If a process fails, the first forward compiles what is missing; the log says why.
    """
    processes = min(n_cores(), MAX_PROCESSES)
    kind = f"ahead {kernels_of(model.file, model.config, device='cpu', kv=model.kv)}"
    if processes < 2 or not sys.executable or warm_marker.is_known(kind):
        return
    given = {"path": str(model.file.path), "kv": model.kv, "pending": model.config.pending, "threads": model.threads}
    running, errors = list[subprocess.Popen[str]](), list[str]()
    with tempfile.TemporaryDirectory(prefix="dflash-") as claims, Progress() as progress:
        settings = json.dumps({**given, "claims": claims})
        readers = [threading.Thread(target=_run, args=(settings, progress, running, errors)) for _ in range(processes)]
        try:
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join()
        except BaseException:  # an interrupt
            for process in running:
                process.kill()
            raise
    if errors:
        _log.warning("kernels are compiled in one process: %s", errors[0])
    else:
        warm_marker.remember(kind)


def _run(settings: str, progress: Progress, running: list["subprocess.Popen[str]"], failures: list[str]) -> None:
    """Run a process to its end, and count what it has compiled."""
    root = str(Path(__file__).parents[3])
    paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "dflash.decode.warmup.compile_worker", settings]
    try:
        with (
            tempfile.TemporaryFile("w+") as errors,
            subprocess.Popen(
                command,
                env={**os.environ, "PYTHONPATH": paths},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            ) as process,
        ):
            running.append(process)
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("["):
                    progress.expect(json.loads(line))
                else:
                    progress.finish(*map(int, line.split()))
            if process.wait() != 0:
                errors.seek(0)
                raise OSError((errors.read().strip().splitlines() or [f"exit status {process.returncode}"])[-1])
    except (OSError, ValueError) as error:
        failures.append(str(error))
