"""Timing of single GPU ops, and the copy bandwidth that they are compared with."""

import statistics

import cupy

from dflash.kernels.copy import bandwidth
from dflash.kernels.gpu.device import captured
from dflash.kernels.gpu.jit import warm

ROUNDS = 9


def microseconds(run, calls=1):
    """Median time of one of the `calls` that ``run(stream)`` makes, replayed as a graph; the first two replays don't count.

    The stream is the current one, too.
    """
    stream = cupy.cuda.Stream(non_blocking=True)
    warm()
    cupy.cuda.Device().synchronize()
    with stream:
        run(stream)
        stream.synchronize()
    graph, took = captured(lambda: run(stream), stream), []
    for _ in range(ROUNDS + 2):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record(stream)
        graph.launch(stream)
        end.record(stream)
        end.synchronize()
        took.append(cupy.cuda.get_elapsed_time(start, end) * 1e3 / calls)
    return statistics.median(took[2:])


def copy_bandwidth():
    """Return the bandwidth of a plain copy, reads plus writes, in GB/s."""
    return bandwidth("cuda") / 1e9
