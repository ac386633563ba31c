"""Skips where there is no GPU, loudly if its kernels are unproven; where there is one, writes down what ran on it.

``record.json`` describes the last run without ``DFLASH_TARGET``; its entry ``targets`` has the last run under each target.
An emulated GPU (`tests/emulator`) leaves it as it is. With ``DFLASH_TEST_GPUS=2``, workers of xdist take the first two GPUs
in turn; tests of several GPUs are skipped then. Start many workers with ``OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1``, as
the references of each would take all cores. A run that is ended by SIGTERM, as ``timeout`` does, is written down, too. Runs
side by side in one checkout write one after another (`suites.sh` runs all targets).
"""

import contextlib
import datetime
import fcntl
import hashlib
import json
import os
import platform
import re
import signal
from pathlib import Path

import pytest

from dflash.kernels.gpu.capabilities import VARIABLE, capabilities

HERE = Path(__file__).parent
RECORD = HERE / "record.json"


WORKER = os.environ.get("PYTEST_XDIST_WORKER")
GPUS = int(os.environ.get("DFLASH_TEST_GPUS", "1"))


def _device():
    if WORKER and GPUS > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(int(WORKER.removeprefix("gw")) % GPUS)
    try:
        import cupy

        return cupy, None if cupy.cuda.runtime.getDeviceCount() else "no CUDA device"
    except Exception as error:
        return None, f"no CUDA device: {type(error).__name__}"


CUPY, REASON = _device()


def kernel_hash(target):
    """SHA-256 of every source that a GPU runs under `target`, and of what launches it.

    Without comments, docstrings and blank lines; without kernels of Hopper alone if `target` is another GPU; and without the
    calls of ``pdl.cuh``, which do nothing before Hopper, if it is an older one.
    """
    root = HERE.parents[1] / "dflash"
    kernels = root / "kernels"
    files = [path for pattern in ("*.cu", "*.cuh", "cuda*.py") for path in kernels.rglob(pattern)]
    files += [
        *(kernels / "gpu").rglob("*.py"),
        kernels / "linear" / "tile_config.py",
        *(root / "model" / "cuda").rglob("*.py"),
    ]
    digest = hashlib.sha256()
    for path in sorted(files):
        if target != "sm_90" and "_hopper" in path.name:
            continue
        prose = r'"""[\s\S]*?"""|^\s*#.*$' if path.suffix == ".py" else "//.*$"
        if path.suffix != ".py" and int(target.removeprefix("sm_")) < 90:
            prose += r"|\b(launch_dependent_grids|wait_on_dependent_grids)\(\);"
        code = re.sub(prose, "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        lines = "\n".join(line.rstrip() for line in code.splitlines() if line.strip())
        digest.update(f"{path.relative_to(root).as_posix()}\0{lines}".encode())
    return digest.hexdigest()


class _Failures:
    """Names a failed test at once, since a run may be ended before its summary."""

    def __init__(self, terminal):
        self._terminal = terminal

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self._terminal.write_line(f"\nFAILED {report.nodeid}")


@pytest.hookimpl(trylast=True)  # the terminal reporter exists
def pytest_configure(config):
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal and not REASON:
        config.pluginmanager.register(_Failures(terminal))
        signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    if REASON:
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=REASON))


@contextlib.contextmanager
def _alone():
    """Let one process at a time read and write the record."""
    folder = os.open(HERE, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _merged(old, new, target):
    """Return the record with a run: in place of the last one of its target, or of the GPU itself without a target."""
    targets = old.get("targets", {})
    return old | {"targets": targets | {target: new}} if target else new | {"targets": targets}


def pytest_terminal_summary(terminalreporter, exitstatus):
    if WORKER or (CUPY and CUPY.__version__.endswith("emulated")):
        return  # the main process counts the tests of all workers
    if REASON:
        record = json.loads(RECORD.read_text())
        runs = record, *record["targets"].values()
        if changed := [run["target"] for run in runs if run["kernels"] != kernel_hash(run["target"])]:
            said = "CUDA SOURCES CHANGED SINCE tests/gpu LAST RAN ON A GPU UNDER THE RULES OF " + ", ".join(changed)
            terminalreporter.write_sep("!", said, red=True, bold=True)
        return
    stats = terminalreporter.stats
    runtime = CUPY.cuda.runtime
    ran = [report for kind in ("passed", "failed", "error") for report in stats.get(kind, []) if report.when == "call"]
    record = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": runtime.getDeviceProperties(0)["name"].decode(),
        "driver": runtime.driverGetVersion(),
        "runtime": runtime.runtimeGetVersion(),
        "cupy": CUPY.__version__,
        "python": platform.python_version(),
        "kernels": kernel_hash(capabilities().name),
        "target": capabilities().name,
        "finished": exitstatus < pytest.ExitCode.INTERRUPTED,
        "files": sorted({report.nodeid.partition("::")[0].rpartition("/")[2] for report in ran}),
        "passed": len(stats.get("passed", [])),
        "failed": sorted(report.nodeid for kind in ("failed", "error") for report in stats.get(kind, [])),
    }
    with _alone():
        record = _merged(json.loads(RECORD.read_text()), record, os.environ.get(VARIABLE))
        whole = RECORD.with_suffix(f".{os.getpid()}")  # a run may be ended while it writes
        whole.write_text(json.dumps(record, indent=2) + "\n")
        whole.replace(RECORD)
