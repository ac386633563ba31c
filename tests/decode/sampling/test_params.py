import dataclasses
import math

import numpy as np
import pytest

from dflash.decode.drafting.drafter import Nothing, Plain, Strategy
from dflash.decode.drafting.shapes import Chain
from dflash.decode.sampling.params import Sampling
from dflash.decode.sampling.processors import Bias, MinP, Penalties, Temperature, TopK, TopP
from dflash.errors import RequestError


def test_nothing_is_on_that_was_not_asked_for():
    assert Sampling().before == Sampling().after == []
    assert Sampling().greedy
    assert Sampling(temperature=0.7).after == [Temperature(0.7)]
    assert Sampling(top_k=5, top_p=0.5, min_p=0.1).after == []


def test_processors_are_applied_in_their_order():
    sampling = Sampling(
        temperature=0.5, top_k=5, top_p=0.5, min_p=0.1, repetition_penalty=1.1, frequency_penalty=0.2, logit_bias={3: 1}
    )
    assert sampling.before == [Penalties(1.1, 0.0, 0.2), Bias(((3, 1),))]
    assert sampling.after == [TopK(5), Temperature(0.5), TopP(0.5), MinP(0.1)]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("temperature", -0.1, "from 0 to 100, got -0.1"),
        ("temperature", math.nan, "got nan"),
        ("temperature", math.inf, "got inf"),
        ("temperature", "1", "got '1'"),
        ("temperature", True, "got True"),
        ("temperature", 10**400, "from 0 to 100"),
        ("top_k", -2, "of at least -1, got -2"),
        ("top_k", 2.0, "whole number"),
        ("top_p", 1.01, "from 0 to 1, got 1.01"),
        ("min_p", -1, "from 0 to 1"),
        ("repetition_penalty", 0, "from 1e-06 to 100, got 0"),
        ("repetition_penalty", 1e-45, "from 1e-06 to 100, got 1e-45"),
        ("presence_penalty", 2.1, "from -2 to 2"),
        ("frequency_penalty", -3, "from -2 to 2"),
        ("logit_bias", {-1: 1}, "token id"),
        ("logit_bias", {1: 101}, "logit_bias of token 1"),
        ("logit_bias", 3, "must map"),
        ("logit_bias", {"1": 1}, "token id"),
        ("seed", 2**64, "from -9223372036854775808 to 18446744073709551615"),
        ("seed", 0.5, "whole number"),
        ("logprobs", -1, "at least 0"),
    ],
)
def test_sampling_parameters_out_of_range_are_refused(name, value, message):
    with pytest.raises(RequestError, match=name) as caught:
        Sampling(**{name: value})
    assert message in str(caught.value)


def test_numbers_of_numpy_are_equal_to_those_of_python():
    bias = {5: 1.0, 2: -3}
    assert Sampling(logit_bias=bias) == Sampling(logit_bias={2: -3, 5: 1.0})
    assert hash(Sampling(logit_bias=bias)) == hash(Sampling(logit_bias=dict(reversed(bias.items()))))
    again = dataclasses.replace(Sampling(logit_bias=bias), seed=4)
    assert dict(again.logit_bias) == bias
    assert Sampling(temperature=np.float32(0.5), seed=np.int64(3)) == Sampling(temperature=0.5, seed=3)


def test_shows_what_was_set():
    assert repr(Sampling()) == "Sampling()"
    assert (
        repr(Sampling(temperature=0.5, logit_bias={3: 1}, seed=0))
        == "Sampling(temperature=0.5, logit_bias=((3, 1),), seed=0)"
    )


def test_strategies_are_values():
    assert Plain() == Strategy(Nothing()) != Strategy(Nothing(), shape=Chain())
    assert repr(Plain()) == "Plain()"
    assert repr(Strategy(Nothing(), Chain(3))) == "Strategy(Nothing(), shape=Chain(3))"
    assert repr(Plain() | "watch") == "Plain() | 'watch'"
    assert (Plain() | "a" | "b").recoveries == ("a", "b")
    assert {Plain(): 1}[Plain()] == 1
