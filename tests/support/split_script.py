"""What a split model and one on a single device both run, to compare their bits."""

import numpy as np
from golden import chain, host, path_of, prefill, step
from twice_the_heads import write_twice_the_heads

from dflash.model.batch import Span
from dflash.model.gguf.file import GGUFFile
from dflash.model.loading.hub import resolve
from dflash.model.state.sequence_state import Snapshot

MOST_ROWS = 6
"""Most pending rows of a sequence in `outputs`."""

_ONE_KV_HEAD = "qwen35-r2-untied-F32", "qwen35moe-r2-F16"


def open_split_file(name, folder):
    """Open the demo or a recorded model, with twice the heads where its one KV head can't be split."""
    if name == "demo":
        return GGUFFile.open(resolve("demo"))
    path = path_of(name)
    return GGUFFile.open(write_twice_the_heads(name, folder / f"{name}.gguf") if name in _ONE_KV_HEAD else path)


def outputs(model, tokens):
    """Logits and captured layers of a prompt, a tree of which a path is accepted, steps, a restored snapshot and a batch.

    Takes 60 tokens.
    """
    found, state, other = [], model.state(), model.state()
    tree = np.array([-1, 0, 0, 1, 2, 4], np.int32)
    layers = tuple(range(model.config.n_layers))
    logits, captured = prefill(model, state, tokens[:40], capture=layers)
    found += [logits, *captured.values(), step(model, state, tokens[40:46], tree)]
    state.commit([0, 2, 4])
    snapshot = state.snapshot()
    out = model.forward([Span(state, tokens[46:50], chain(4))], capture=layers)
    found += [host(out.logits), host(out.hidden), *(host(out.captured[layer]) for layer in layers)]
    state.commit([0, 1])
    saved = state.host_arrays()
    found.append(step(model, state, tokens[50:51]))
    other.restore(snapshot)
    again = Snapshot.from_host(model.pools, saved)
    state.restore(again)
    spans = [Span(state, tokens[50:53], chain(3)), Span(other, tokens[46:47], chain(1))]
    found.append(host(model.forward(spans).logits))
    for each in (state, other, snapshot, again):
        each.close()
    return found


def sizes_of_passes(model, tokens):
    """Logits of prompts beside each other, and of passes of every number of rows that has a graph. Takes 300 tokens."""
    states, rows = [model.state() for _ in range(3)], []
    spans = [
        Span(state, part, chain(len(part)), prefill=True)
        for state, part in zip(states, (tokens[:300], tokens[:1], tokens[5:140]), strict=True)
    ]
    rows.append(host(model.forward(spans).logits))
    for n in (1, 2, 4, 7, 16, 23, 32, 48, 64):
        rows.append(step(model, states[0], tokens[n : 2 * n]))
        states[0].commit(range(n // 2))
    spans = [Span(state, tokens[i : i + 9], chain(9)) for i, state in enumerate(states)]
    rows.append(host(model.forward(spans).logits))
    for state in states:
        state.close()
    return rows


def few_rows_in_turn(model, tokens):
    """Logits of passes of 1 to 8 rows in many orders, of one and of several sequences: arrays that one uses the next clears.

    Takes 100 tokens.
    """
    states, rows = [model.state() for _ in range(3)], []
    for state, n in zip(states, (20, 7, 33), strict=True):
        rows.append(prefill(model, state, tokens[:n])[0])
    for i, n in enumerate((8, 1, 3, 7, 1, 2, 8, 5, 1, 1, 6, 4, 1)):
        rows.append(step(model, states[0], tokens[i : i + n]))
        states[0].commit(range(max(n // 2, 1)))
        few = [Span(state, tokens[i : i + 1 + i % 2], chain(1 + i % 2)) for state in states]
        rows.append(host(model.forward(few).logits))
    for state in states:
        state.close()
    return rows
