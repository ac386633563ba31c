"""Confidences of a draft, and the draft lengths that follow from them."""

import numpy as np
import pytest
from compare import assert_close, assert_same_bits

from dflash.kernels.confidence import confidence, reach, reference

CASES = list(reference.cases())
IDS = [name for name, *_ in CASES]
RNG = np.random.default_rng(2)


def normal(*shape):
    return RNG.standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize(("name", "texts", "each", "lead", "width", "rank"), CASES, ids=IDS)
def test_confidences_equal_the_definition(name, texts, each, lead, width, rank):
    n = texts * (each - lead)
    hidden, codes, weight = normal(n, width), normal(n, rank), normal(width + rank) / np.float32(np.sqrt(width))
    got = confidence(hidden, codes, weight, 0.3)
    assert_close(name, got, reference.confidence(hidden, codes, weight.astype(np.float64), 0.3), 1e-5)
    assert_same_bits("alone", confidence(hidden[:1], codes[:1], weight, 0.3), got[:1])


@pytest.mark.parametrize("least", [0.0, 0.3, 0.9, 1.0])
def test_draft_lengths_equal_the_definition(least):
    for confidences in (
        RNG.random((20, 7), dtype=np.float32) ** 0.2,
        np.ones((1, 3), np.float32),
        np.zeros((1, 3), np.float32),
    ):
        for row in confidences:
            assert reach(row, least) == reference.reach(row.astype(np.float64), least)
