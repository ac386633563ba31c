"""What a split model and one on a single device both run, to compare their bits."""

import numpy as np
from golden import chain, host, prefill, step

from dflash.model.batch import Span
from dflash.model.state.sequence_state import Snapshot


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
