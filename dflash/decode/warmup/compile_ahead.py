"""Compile the kernels of a model in several processes at once, at its first start on a machine.

Compiling holds the interpreter lock for most of its time, so threads would not help. The processes put code into the cache
on disk, from which this one loads it. Loading waits for the kernels of the first tokens only; the processes compile the
others while the model already runs.
"""

import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, Self

from dflash.kernels.compiling import Progress
from dflash.kernels.cpu import warm_marker
from dflash.kernels.formats import FORMATS
from dflash.model.loading.target import HostSettings, kernels_of
from dflash.model.network.blocks import FEED_FORWARDS
from dflash.model.numerics import Numerics
from dflash.model.run.cpu import bind
from dflash.model.state.budget import n_cores

_log = logging.getLogger(__name__)

MAX_PROCESSES = 4
"""Each takes about 0.4 GB of memory, and the largest kernel alone takes a sixth of the time of all."""


def compile_ahead(model: HostSettings) -> None:
    """Fill the cache with all kernels that a model needs on the CPU."""
    with CompileAhead() as ahead:
        ahead.begin(model)
        ahead.finished.wait()


class CompileAhead:
    """Processes that compile the kernels of a model. An error in the ``with`` block ends them.

    Otherwise they go on after its end, and after that of this process: a short first run would leave the work to the next.

    finished: set unless the processes are at work.
    """

    def __init__(self) -> None:
        self.finished, self._first = threading.Event(), threading.Event()
        self.finished.set()
        self._running: list[subprocess.Popen[str]] = []
        self._errors: list[str] = []
        self._interrupted, self._claims = False, ""

    def begin(self, model: HostSettings) -> None:
        """Start the processes, and wait for the kernels of the first tokens.

        Without effect on a single core, and where the cache is known to have all kernels. If a process fails, forwards
        compile what is missing; the log says why.
        """
        kind = kernels_of(model.file, model.config, device="cpu", numerics=Numerics(kv=model.kv))
        processes = min(n_cores(), MAX_PROCESSES)
        if processes < 2 or not sys.executable or warm_marker.is_known(kind):
            return
        given = {"path": str(model.file.path), "kv": model.kv, "pending": model.config.pending, "threads": model.threads}
        # functions of formats, feed forwards and ops, some of them perhaps from outside this package
        functions = *(each.decode for each in FORMATS.values()), *FEED_FORWARDS.values(), *bind.registry.values()
        given |= {"kind": kind, "processes": processes, "modules": sorted({each.__module__ for each in functions})}
        self._claims = tempfile.mkdtemp(prefix="dflash-")
        self.finished.clear()
        threading.Thread(target=self._supervise, args=(given,), name="dflash-compile", daemon=True).start()
        if not warm_marker.is_known(f"first tokens of {kind}"):
            self._first.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._interrupted = True
            for process in self._running:
                process.kill()
                process.wait()
            shutil.rmtree(self._claims, ignore_errors=True)  # this process may end before `_supervise`

    def _supervise(self, given: dict[str, Any]) -> None:
        """Run the processes to their ends."""
        try:
            with Progress() as progress:
                args = {**given, "claims": self._claims}, progress
                readers = [threading.Thread(target=self._run, args=args, daemon=True) for _ in range(given["processes"])]
                for reader in readers:
                    reader.start()
                for reader in readers:
                    reader.join()
            if self._errors and not self._interrupted:
                _log.warning("kernels are compiled in one process: %s", self._errors[0])
        finally:
            shutil.rmtree(self._claims, ignore_errors=True)
            self._first.set()
            self.finished.set()

    def _run(self, given: dict[str, Any], progress: Progress) -> None:
        """Run a process to its end, and count what it has compiled."""
        root = str(Path(__file__).parents[3])
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (root, *sys.path)))}
        command = [sys.executable, "-P", "-m", "dflash.decode.warmup.compile_worker", json.dumps(given)]
        try:
            with (
                tempfile.TemporaryFile("w+") as errors,
                subprocess.Popen(
                    command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
                ) as process,
            ):
                self._running.append(process)
                if self._interrupted:
                    process.kill()
                assert process.stdout is not None
                for line in process.stdout:
                    if line.startswith("["):
                        first, later = json.loads(line)
                        progress.expect(first)
                    else:
                        progress.finish(*map(int, line.split()))
                    if progress.is_done and not self._first.is_set():
                        warm_marker.remember(f"first tokens of {given['kind']}")
                        self._first.set()
                        progress.expect(later, len(first))
                if process.wait() != 0:
                    errors.seek(0)
                    raise OSError((errors.read().strip().splitlines() or [f"exit status {process.returncode}"])[-1])
        except (OSError, ValueError) as error:
            self._errors.append(str(error))
