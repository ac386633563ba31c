"""Several stages in one parallel launch: between two stages, threads wait for each other without leaving the launch.

The threads take the tasks of a stage from a counter, and another counter counts tasks that are done. A thread begins a stage
once all tasks before it are done. So it only ever waits for tasks that running threads have begun: a thread that comes late
or not at all delays nobody, and one thread alone runs all stages.
"""

import numpy as np
from numba import prange

from dflash.kernels.cpu.jit import inline, kernel
from dflash.kernels.cpu.simd import fetch_add, load_acquire, pause, sleep
from dflash.kernels.joined import table, tasks
from dflash.kernels.joined.arrays import call_task
from dflash.kernels.linear.cpu import buffer_bytes_of, scratch_bytes, take_tasks

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
def _new_zeros(n):
    """Return zeros; inside a parallel function numba would turn ``np.zeros`` into a parallel launch."""
    return np.zeros((n, _LINE), np.int64)


@inline
def _walk(
    stages, plans, counters, n_threads, eps, tokens, positions, batch,
    row_starts, parent, slot, prefill, accepted, n_accepted, buffer,
):  # fmt: skip
    """Run tasks of all stages, in turn; row 0 of `counters` counts done tasks, row 1 + i tasks taken of stage i."""
    n, before = np.int64(row_starts[-1]), 0
    buffer_bytes = buffer_bytes_of(plans)
    scratch = np.empty(scratch_bytes(plans, n, buffer_bytes) // 4, np.float32)
    done = counters.ctypes.data
    for i in range(len(stages)):
        stage, taken, n_done = stages[i], done + 8 * _LINE * (1 + i), 0
        kind, many = stage[table.KIND], tasks.n_tasks(stage, plans, n, slot.shape[0])
        _wait(done, before)
        if kind == table.MULTIPLY:
            plan = plans[stage[table.FIRST] : stage[table.STOP]]
            n_done = take_tasks(plan, many, n_threads, taken, scratch, n, buffer_bytes)
        else:
            task = fetch_add(taken, 1)
            while task < many:
                if kind == table.NORM:
                    tasks.norm(stage, task, eps)
                elif kind == table.GATED_NORM:
                    tasks.gated_norm(stage, task, eps, n)
                elif kind == table.EMBED:
                    tasks.embed(stage, task, tokens)
                elif kind == table.ANGLES:
                    tasks.angles(stage, task, n, positions)
                elif kind == table.CONV:
                    tasks.conv(stage, task, n, row_starts, parent, slot, prefill, accepted, n_accepted, buffer)
                else:
                    call_task(stage[table.FUNCTION], stage.ctypes.data, task, batch.ctypes.data)
                n_done += 1
                task = fetch_add(taken, 1)
        if n_done > 0:
            fetch_add(done, n_done)
        before += many


@kernel
def run(
    stages, plans, n_threads, eps, tokens, positions, row_starts, sequence, parent, depth, length, pages,
    slot, prefill, accepted, n_accepted, buffer,
):  # fmt: skip
    """Run the stages of a table for the rows of a batch."""
    counters, batch = _new_zeros(1 + len(stages)), np.empty(table.BATCH_COLUMNS, np.int64)
    batch[table.ROWS], batch[table.SEQUENCES], batch[table.N_PAGES] = row_starts[-1], slot.shape[0], pages.shape[1]
    batch[table.ROW_STARTS], batch[table.SEQUENCE] = row_starts.ctypes.data, sequence.ctypes.data
    batch[table.PARENT], batch[table.DEPTH] = parent.ctypes.data, depth.ctypes.data
    batch[table.LENGTH], batch[table.PAGES] = length.ctypes.data, pages.ctypes.data
    batch[table.SLOT], batch[table.PREFILL] = slot.ctypes.data, prefill.ctypes.data
    batch[table.ACCEPTED], batch[table.N_ACCEPTED] = accepted.ctypes.data, n_accepted.ctypes.data
    batch[table.BUFFER] = buffer.ctypes.data
    for _ in prange(n_threads):
        _walk(
            stages, plans, counters, n_threads, eps, tokens, positions, batch,
            row_starts, parent, slot, prefill, accepted, n_accepted, buffer,
        )  # fmt: skip
