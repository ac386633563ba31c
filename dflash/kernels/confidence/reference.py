"""Definitions in float64 NumPy."""

import numpy as np


def confidence(hidden, codes, weight, bias):
    """Return ``sigmoid(weight . [hidden; code] + bias)`` of each row."""
    found = []
    for row, code in zip(np.asarray(hidden, np.float64), np.asarray(codes, np.float64), strict=True):
        found.append(1 / (1 + np.exp(-(np.dot(weight[: len(row)], row) + np.dot(weight[len(row) :], code) + bias))))
    return np.array(found)


def reach(confidences, least):
    """Count the leading positions for which the product of confidences is at least `least`."""
    n, product = 0, 1.0
    while n < len(confidences) and (product := product * confidences[n]) >= least:
        n += 1
    return n


def cases():
    """Yield names, sequences, rows of a block, leading rows without draft tokens, D, K."""
    for texts, each, lead, width, rank in ((1, 2, 1, 16, 16), (3, 6, 0, 48, 16), (4, 16, 1, 5120, 256), (5, 8, 0, 2048, 64)):
        yield f"{texts} blocks of {each} from {lead}, {width} and {rank}", texts, each, lead, width, rank
