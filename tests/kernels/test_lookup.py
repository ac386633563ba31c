"""The index of runs: against the definition, while the text grows in any pieces."""

import time

import numpy as np
import pytest

from dflash.errors import KernelError
from dflash.kernels.lookup import Index, reference


@pytest.mark.parametrize(("name", "text", "shortest", "longest"), list(reference.cases()))
def test_match(name, text, shortest, longest):
    index = Index(shortest, longest)
    for i, token in enumerate(text):
        index.append([token])
        assert index.match() == reference.match(text[: i + 1], shortest, longest), f"{name}: {text[: i + 1]}"
    whole = Index(shortest, longest)
    whole.append(text)
    assert whole.match() == index.match()


def test_a_text_that_outgrows_its_tables():
    """Runs entered before are found after."""
    rng = np.random.default_rng(3)
    text = [*rng.integers(0, 5, 5000).tolist(), *range(100, 120)]
    index, n = Index(2, 8), 0
    while n < len(text):
        some = text[n : n + int(rng.integers(1, 700))]
        index.append(some)
        n += len(some)
    index.append(text[:6])
    assert index.match()[0] >= 6
    assert index.match() == reference.match([*text, *text[:6]], 2, 8)


def test_what_follows_goes_round():
    index = Index(1, 4)
    index.append([9, 1, 2, 3, 1])
    length, follower = index.match()
    assert (length, follower) == (1, 2)
    assert index.following(follower, 7).tolist() == [2, 3, 1, 2, 3, 1, 2]


@pytest.mark.parametrize("text", ["one token", "two letters", "many letters"])
def test_a_long_text_is_cheap(text):
    """A hundred thousand tokens within a fraction of a second, also where every run is like every other."""
    n = 100_000
    tokens = np.zeros(n, int) if text == "one token" else np.random.default_rng(0).integers(0, 2, n)
    tokens = tokens if text != "many letters" else np.random.default_rng(0).integers(0, 50_000, n)
    Index(2, 8).append([1, 2, 3])
    index, began = Index(2, 8), time.perf_counter()
    for start in range(0, n, 512):
        index.append(tokens[start : start + 512])
        index.match()
    assert time.perf_counter() - began < 1.0


@pytest.mark.parametrize(("shortest", "longest"), [(0, 3), (4, 3)])
def test_lengths_that_make_no_sense(shortest, longest):
    with pytest.raises(KernelError, match=f"{shortest} and {longest}"):
        Index(shortest, longest)
