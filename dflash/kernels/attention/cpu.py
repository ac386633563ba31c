"""Paged attention in numba: threads take tasks; the thread that finishes a unit's last page merges all its pages."""

import numba
import numpy as np

from dflash.kernels.attention import plan
from dflash.kernels.attention.page import clear, finish, gather, merge, read_page, read_window
from dflash.kernels.cpu.jit import inline, kernel
from dflash.kernels.cpu.simd import fetch_add
from dflash.kernels.ragged import PAGE

_NO_GATE = np.empty((0, 0), np.float32)


def attend(q, k, v, rows, *, out, gate=None, window=0):
    """See the package."""
    gate = _NO_GATE if gate is None else gate
    threads = numba.get_num_threads()
    attend_rows(q, k, v, rows.row_starts, rows.parent, rows.depth, rows.length, rows.pages, gate, out, threads, int(window))


@inline
def _straight(pages, page, places):
    """Fill the places of a page whose positions are stored in order."""
    place = np.int64(pages[page]) * PAGE
    for i in range(PAGE):
        places[i] = place + i


@inline
def _follow(parent, depth, length, pages, row, page, places):
    """Write the places of a row and its ancestors at their positions within a page."""
    while row >= 0:
        at = length + depth[row] - page * PAGE
        if at >= 0 and at < PAGE:
            index = length + row
            places[at] = np.int64(pages[index // PAGE]) * PAGE + index % PAGE
        row = parent[row]


@inline
def _first_page(position, window):
    """Return the first page that a row at a position sees."""
    return max(position + 1 - window, 0) // PAGE if window > 0 else 0


@inline
def _read(
    unit, page, k, v, width, group, window, first, parent, depth, length, pages, queries, counts, scores, records, places
):
    """Compute the records of a unit's queries for one page; those of rows that see nothing of it are undefined."""
    s, head = unit[plan.SEQUENCE], unit[plan.HEAD]
    parent, depth = parent[first[s] : first[s + 1]], depth[first[s] : first[s + 1]]
    length, pages, address = length[s], pages[s], places.ctypes.data
    start, end, before = unit[plan.FIRST] - first[s], unit[plan.LAST] - first[s], page * PAGE
    complete = before + PAGE <= length
    nearest = depth[start:end].min() + length
    if page < _first_page(nearest, window):
        return
    for row in range(start, end):
        counts[(row - start) * group : (row - start + 1) * group] = min(PAGE, length + depth[row] + 1 - before)
    _straight(pages, page, places)
    row = start
    while row < end:
        last, a = row + 1, (row - start) * group
        if counts[a] > 0:
            # rows share places if the page is complete or their ancestors are stored in order: later rows see no fewer
            shared = complete or depth[row] == row
            while shared and last < end and (complete or depth[last] == last):
                last += 1
            if not shared:
                _follow(parent, depth, length, pages, row, page, places)
            b = (last - start) * group
            if window == 0:
                read_page(k, v, address, head, width, queries, counts, a, b, scores, records)
            else:
                begins = length + depth[start:end] + 1 - window - before
                read_window(k, v, address, head, width, queries, counts, begins, group, a, b, scores, records)
            if not shared:
                _straight(pages, page, places)
        row = last


@inline
def _write(states, start, head, group, n, heads, width, gate, out):
    """Write the output of a unit from its records; `gate` and `out` are (rows, heads, ...) of the batch."""
    for j in range(n):
        at = (start + j // group) * heads + head + j % group
        opening = gate.ctypes.data + 4 * width * (2 * at + 1) if gate.size > 0 else 0
        finish(states + 4 * (width + 32) * j, width, opening, out.ctypes.data + 4 * width * at)


@inline
def scratch_size(most, width):
    """Return the float32 values that `work` needs for `most` queries: queries, scores of a page, and two states of each."""
    return most * (width + PAGE + 2 * (width + 32))


@inline
def work(q, k, v, first, parent, depth, length, pages, gate, out, units, tasks, most, scratch, partial, tickets, window):
    """Run tasks until none are left; ``tickets[0]`` is the next task, ``tickets[1 + u]`` counts a unit's finished pages."""
    heads, width = q.shape[1], q.shape[2]
    group, record = heads // k.shape[2], 4 * (width + 32)
    places, counts = np.empty(PAGE, np.int64), np.empty(most, np.int64)
    query = scratch.ctypes.data
    dots = query + 4 * most * width
    states = dots + 4 * most * PAGE
    ticket = tickets.ctypes.data
    while True:
        task = fetch_add(ticket, 1)
        if task >= len(tasks):
            break
        u, page = tasks[task]
        unit = units[u]
        start, head, n = unit[plan.FIRST], unit[plan.HEAD] * group, (unit[plan.LAST] - unit[plan.FIRST]) * group
        gather(q, start, 1, head, group, n, query)
        stored = partial.ctypes.data + record * unit[plan.RECORDS]
        if page != plan.ALL:
            at = stored + record * n * page
            _read(
                unit, page, k, v, width, group, window, first,
                parent, depth, length, pages, query, counts, dots, at, places,
            )  # fmt: skip
            if fetch_add(ticket + 8 * (1 + u), 1) < unit[plan.PAGES] - 1:
                continue
        for j in range(n):
            clear(states + record * j, width)
        for p in range(unit[plan.PAGES]):
            at = stored + record * n * p
            if page == plan.ALL:
                at = states + record * most
                _read(
                    unit, p, k, v, width, group, window, first,
                    parent, depth, length, pages, query, counts, dots, at, places,
                )  # fmt: skip
            for j in range(n):
                position = length[unit[plan.SEQUENCE]] + depth[start + j // group]
                if _first_page(position, window) <= p <= position // PAGE:
                    merge(states + record * j, at + record * j, width)
        _write(states, start, head, group, n, heads, width, gate, out)


@kernel
def attend_rows(q, k, v, first, parent, depth, length, pages, gate, out, threads, window):
    """See the package; `gate` is empty if there is none."""
    width, heads = q.shape[2], k.shape[2]
    group = q.shape[1] // heads
    units, splits = plan.cut_in_units(first, depth, length, heads, group, width, threads)
    tasks, most, records, products = plan.cut_in_tasks(units, splits, group, width, threads)
    partial = np.empty(records * (width + 32), np.float32)
    tickets = plan.new_tickets(1 + len(units))
    # one array per thread; numba frees an array after the last use of its name, even if its address is still in use
    size = scratch_size(most, width)
    if products <= plan.SERIAL or len(tasks) == 1:
        scratch = np.empty(size, np.float32)
        work(q, k, v, first, parent, depth, length, pages, gate, out, units, tasks, most, scratch, partial, tickets, window)
    else:
        for _ in numba.prange(threads):
            own = np.empty(size, np.float32)
            work(q, k, v, first, parent, depth, length, pages, gate, out, units, tasks, most, own, partial, tickets, window)


def compact(k, v, *, pages, length, path):
    """See the package."""
    k, v = (cache.reshape(-1, *cache.shape[-4:-2], cache.shape[-2] * cache.shape[-1]) for cache in (k, v))
    _compact(k, v, pages, int(length), np.asarray(path, np.int32))


@inline
def _compact(k, v, pages, length, path):
    for j in range(path.size):
        source, target = length + path[j], length + j
        if source != target:
            a, b = pages[source // PAGE], pages[target // PAGE]
            for layer in range(k.shape[0]):
                k[layer, b, target % PAGE] = k[layer, a, source % PAGE]
                v[layer, b, target % PAGE] = v[layer, a, source % PAGE]
