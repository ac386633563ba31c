"""A bias on many tokens: one vector operation, with the bits of adding one number after another."""

import numpy as np
import pytest

from dflash.decode.drafting.draft import Draft
from dflash.decode.sampling.history import History
from dflash.decode.sampling.params import Sampling
from dflash.decode.sampling.processors import Bias
from dflash.decode.sampling.sampler import Sampler
from dflash.errors import RequestError
from dflash.kernels.sample.params import LogitEdits, Offsets, edited

VOCAB = 5000
RNG = np.random.default_rng(4)
PAIRS = tuple((int(token), float(RNG.uniform(-100, 100))) for token in sorted(RNG.choice(VOCAB, 3000, replace=False)))


def added_one_by_one(row, pairs):
    row = row.copy()
    for token, value in pairs:
        row[token] += np.float32(value)
    return row


class Counting(np.ndarray):
    """A row of logits that counts how often it is read or written through an index."""

    n_touched = 0

    def __getitem__(self, key):
        Counting.n_touched += 1
        return super().__getitem__(key)

    def __setitem__(self, key, value):
        Counting.n_touched += 1
        super().__setitem__(key, value)


@pytest.mark.parametrize("pairs", [PAIRS, ((7, 0.1), (7, 1e8), (7, -1e8)), ()], ids=["many", "one token thrice", "none"])
def test_the_bits_are_those_of_a_loop(pairs):
    row = RNG.normal(0, 5, VOCAB).astype(np.float32)
    row[:50] = -np.inf
    expected = added_one_by_one(row, pairs).view(np.uint32)
    ruled = Bias(pairs)(row.copy(), History([1]))
    assert np.array_equal(ruled.view(np.uint32), expected)
    none = np.empty(0, np.int64), np.empty(0, np.float32)
    assert np.array_equal(edited(row, LogitEdits(*none, [{}], bias=Offsets.of(pairs)), 0).view(np.uint32), expected)


def test_no_loop_over_tokens():
    row = np.zeros(VOCAB, np.float32).view(Counting)
    Counting.n_touched = 0
    Bias(PAIRS)(row, History([1]))
    assert Counting.n_touched <= 2


def test_arrays_are_made_once_a_session():
    sampler = Sampler(Sampling(logit_bias=dict(PAIRS)), 0)
    history = History([1, 2])
    asked = [sampler.request(draft, history, edits=True).edits.bias for draft in (Draft([3, 4]), Draft([5]))]
    assert asked[0] is asked[1] is sampler.processors[0].offsets
    assert (asked[0].ids.dtype, asked[0].values.dtype) == (np.int64, np.float32)
    assert list(zip(asked[0].ids.tolist(), asked[0].values, strict=True)) == [(t, np.float32(v)) for t, v in PAIRS]


def test_as_a_value():
    assert Bias(PAIRS) == Bias(PAIRS) != Bias(PAIRS[1:])
    assert hash(Bias(PAIRS)) == hash(Bias(PAIRS))
    assert repr(Bias(((3, 1.0),))) == "Bias(bias=((3, 1.0),))"
    with pytest.raises(RequestError, match="logit_bias: a token id: must be a whole number from 0 to 2147483647"):
        Sampling(logit_bias={2**70: 1})
