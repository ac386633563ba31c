"""The radix tree against a plain dictionary."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.decode.prefix_cache.radix_tree import RadixTree


def nodes_below(node):
    for child in node.children.values():
        yield child
        yield from nodes_below(child)


@given(st.integers(0, 100_000))
@settings(max_examples=60, deadline=None)
def test_it_finds_what_a_dictionary_finds(number):
    rng = np.random.default_rng(number)
    tree, known = RadixTree(), {}
    for step in range(60):
        ids = rng.integers(0, 3, rng.integers(0, 12)).astype(np.int32)
        if known and rng.random() < 0.4:
            key = sorted(known)[rng.integers(len(known))]
            tree.remove(known.pop(key))
        else:
            known[tuple(ids.tolist())] = tree.add(ids, step)
        query = rng.integers(0, 3, rng.integers(0, 16)).astype(np.int32)
        found = list(tree.prefixes(query))
        want = [key for key in sorted(known, key=len) if tuple(query[: len(key)].tolist()) == key]
        assert [(node.length, node) for node in found] == [(len(key), known[key]) for key in want]
        nearest, n = tree.nearest(query)
        shares = {
            key: next(
                (i for i, pair in enumerate(zip(key, query, strict=False)) if pair[0] != pair[1]),
                min(map(len, (key, query))),
            )
            for key in known
        }
        assert n == max(shares.values(), default=0)
        assert not known or (nearest.value is not None and shares[next(k for k, v in known.items() if v is nearest)] == n)
        below = list(nodes_below(tree.root))
        assert all(node.value is not None or len(node.children) > 1 for node in below)
        assert sum(node.value is not None for node in (tree.root, *below)) == len(known)
        for node in below:
            assert len(node.edge) > 0
            assert node.length == node.parent.length + len(node.edge)
