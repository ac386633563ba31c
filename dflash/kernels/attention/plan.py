"""Partition of attention into units and tasks for the threads; the result's bits do not depend on it."""

import numpy as np

from dflash.kernels.cpu.jit import inline
from dflash.kernels.ragged import PAGE

QUERIES = 96
"""Largest number of queries (rows times heads that share keys) of a unit; they read a page together."""

SERIAL = 1 << 17
"""Multiplications of queries with keys below which one thread is faster than waking the others."""

SEQUENCE, FIRST, LAST, HEAD, TOKENS, PAGES, RECORDS, COLUMNS = range(8)
"""Columns of a table of units: rows FIRST .. LAST - 1 of a SEQUENCE, by one KV HEAD, read at most TOKENS tokens in PAGES
pages; if every page is a task, its records begin at RECORDS. COLUMNS is how many there are."""

ALL = -1
"""Page number of a task that reads all pages of its unit."""

_MOST_RECORDS = 1 << 23  # floats of all records; above this, pages of a unit are read by one thread in turn


@inline
def cut_in_units(first, depth, length, heads, group, width, threads):
    """Return a table of units, and whether their pages may be separate tasks."""
    n, most = first[-1], 0
    for s in range(length.size):
        most = max(most, -(-(length[s] + first[s + 1] - first[s]) // PAGE))
    splits = n * heads * group * most * (width + 32) <= _MOST_RECORDS
    # as many rows as fit read a page together, unless that leaves threads without work
    rows = max(-(-4 // group), min(QUERIES // group, n * heads * (most if splits else 1) // (2 * threads)))
    blocks = 0
    for s in range(length.size):
        blocks += -(-(first[s + 1] - first[s]) // rows)
    units = np.empty((blocks * heads, COLUMNS), np.int64)
    u, records = 0, 0
    for s in range(length.size):
        for start in range(first[s], first[s + 1], rows):
            end = min(start + rows, first[s + 1])
            deepest = 0
            for row in range(start, end):
                deepest = max(deepest, depth[row])
            for head in range(heads):
                unit = units[u]
                unit[SEQUENCE], unit[FIRST], unit[LAST], unit[HEAD] = s, start, end, head
                unit[TOKENS] = length[s] + deepest + 1
                unit[PAGES], unit[RECORDS] = -(-unit[TOKENS] // PAGE), records
                records += unit[PAGES] * (end - start) * group
                u += 1
    return units, splits


@inline
def cut_in_tasks(units, splits, group, width, threads):
    """Return tasks (unit, page or ALL), last rows first, the queries of the largest unit, the records and the products."""
    pages, queries, records, products = 0, 0, 0, 0
    for unit in units:
        many = (unit[LAST] - unit[FIRST]) * group
        queries = max(queries, many)
        pages += unit[PAGES]
        records += unit[PAGES] * many
        products += unit[TOKENS] * many * width
    split = splits and len(units) < 4 * threads and products > SERIAL
    tasks = np.empty((pages if split else len(units), 2), np.int64)
    t = 0
    for u in range(len(units) - 1, -1, -1):
        for page in range(units[u, PAGES] if split else 1):
            tasks[t, 0], tasks[t, 1] = u, page if split else ALL
            t += 1
    return tasks, queries, records if split else 0, products


@inline
def new_tickets(n):
    """Return `n` zeros; inside a parallel function numba would turn ``np.zeros`` into a parallel launch."""
    return np.zeros(n, np.int64)
