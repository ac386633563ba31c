"""Several stages in one parallel launch: between two stages, threads wait for each other without leaving the launch.

The threads take the tasks of a stage from a counter, and another counter counts tasks that are done. A thread begins a stage
once all tasks before it are done. So it only ever waits for tasks that running threads have begun: a thread that comes late
or not at all delays nobody, and one thread alone runs all stages.
"""

import numpy as np
from numba import get_num_threads, prange

from dflash.kernels.cpu.jit import inline, kernel
from dflash.kernels.cpu.simd import fetch_add, load_acquire, pause, sleep
from dflash.kernels.joined.stages import n_tasks, run_stage
from dflash.kernels.linear.cpu import scratch_bytes

_LINE = 8  # int64 in a cache line
_SPINS = 2000  # pauses, some tens of microseconds, after which a waiting thread leaves its core to others
_NAP = 20  # microseconds


@inline
def _wait(done, wanted):
    """Wait until the int64 at address `done` is at least `wanted`."""
    spins = 0
    while load_acquire(done) < wanted:
        pause()
        spins += 1
        if spins > _SPINS:
            sleep(_NAP)


@inline
def _walk(
    stages, plans, counters, n_threads, lanes, eps, tokens, positions,
    row_starts, parent, slot, prefill, accepted, n_accepted, buffer,
):  # fmt: skip
    """Run tasks of all stages, in turn; row 0 of `counters` counts done tasks, row 1 + i tasks taken of stage i."""
    n, before = np.int64(row_starts[-1]), 0
    scratch = np.empty(scratch_bytes(n, 0) // 4, np.float32)
    done = counters.ctypes.data
    for i in range(len(stages)):
        many = n_tasks(stages[i], plans, n, slot.shape[0])
        _wait(done, before)
        n_done = run_stage(
            stages[i], plans, many, n_threads, done + 8 * _LINE * (1 + i), scratch, lanes, eps, n, tokens, positions,
            row_starts, parent, slot, prefill, accepted, n_accepted, buffer,
        )  # fmt: skip
        if n_done > 0:
            fetch_add(done, n_done)
        before += many


@inline
def _new_counters(n):
    """Return zeros; inside a parallel function numba would turn ``np.zeros`` into a parallel launch."""
    return np.zeros((n, _LINE), np.int64)


@kernel
def run(
    stages, plans, lanes, eps, tokens, positions, row_starts, parent, slot, prefill, accepted, n_accepted, buffer
):  # fmt: skip
    """Run the stages of a table; `lanes` is that of `dflash.kernels.delta.tiles`."""
    n_threads, counters = get_num_threads(), _new_counters(1 + len(stages))
    for _ in prange(n_threads):
        _walk(
            stages, plans, counters, n_threads, lanes, eps, tokens, positions,
            row_starts, parent, slot, prefill, accepted, n_accepted, buffer,
        )  # fmt: skip
