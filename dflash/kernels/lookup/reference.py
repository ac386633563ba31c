"""Definition by exhaustive search."""

import numpy as np


def match(text, shortest, longest):
    """Return the length of the longest repeated n-gram at the end, and the index after its latest earlier occurrence."""
    n = len(text)
    for length in range(min(longest, n - 1), shortest - 1, -1):
        for follower in range(n - 1, length - 1, -1):
            if list(text[follower - length : follower]) == list(text[n - length :]):
                return length, follower
    return 0, n


def occurrences(text, query, shortest, longest):
    """Return ends and lengths of `Index.occurrences` for a text whose last token is not entered yet."""
    text, query = list(text), list(query)
    for n in range(min(longest, len(query)), shortest - 1, -1):
        ends = [end for end in range(len(text) - 2, n - 2, -1) if text[end + 1 - n : end + 1] == query[len(query) - n :]]
        if ends:
            return ends, [_n_equal(text[: end + 1], query) for end in ends]
    return [], []


def _n_equal(one, other):
    """Return how many tokens at the ends are equal."""
    n = 0
    while n < min(len(one), len(other)) and one[-1 - n] == other[-1 - n]:
        n += 1
    return n


def continuations(text, ends, weights, depth):
    """Return the share of each path of tokens that follows one of the places, as a dictionary."""
    shares = {}
    for end, weight in zip(ends, weights, strict=True):
        path = ()
        for token in text[end + 1 : end + 1 + depth]:
            if token < 0:
                break
            path += (token,)
            shares[path] = shares.get(path, 0.0) + weight / sum(weights)
    return shares


def cases():
    """Yield names, token ids, shortest and longest n-gram."""
    rng = np.random.default_rng(11)
    yield "one token", [5], 1, 4
    yield "nothing twice", list(range(20)), 1, 4
    yield "one token over and over", [7] * 40, 2, 5
    yield "a period of three", [1, 2, 3] * 15, 2, 6
    yield "the last of several", [1, 2, 9, 1, 2, 8, 1, 2, 7, 1, 2], 1, 3
    yield "the longest, not the last", [3, 1, 2, 9, 4, 1, 2, 8, 3, 1, 2], 1, 3
    yield "exactly the shortest", [5, 6, 1, 5, 6], 2, 4
    yield "shorter than the shortest", [5, 6, 1, 4, 6], 2, 4
    yield "two letters", rng.integers(0, 2, 300).tolist(), 1, 9
    yield "many letters", rng.integers(0, 1 << 20, 300).tolist(), 3, 3
