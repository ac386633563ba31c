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
