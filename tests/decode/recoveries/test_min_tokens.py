"""No end before its time, at whatever node of a draft the model wants one."""

import numpy as np
import pytest
from oracles import naive
from toy import Toy
from watching import WAYS, way, written

from dflash.decode.recoveries.min_tokens import MinTokens
from dflash.decode.sampling.params import Sampling
from dflash.errors import RequestError

PROMPT, ENDS = [3, 8, 5, 2], (0, 6)
SAMPLINGS = [
    Sampling(),
    Sampling(temperature=0.8, seed=4),
    Sampling(repetition_penalty=1.4, temperature=1.0, top_k=5, seed=1),
]


def mask(n):
    def masked(logits, text):
        if len(text) - len(PROMPT) < n:
            logits[list(ENDS)] = -np.inf
        return logits

    return masked


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("n", [1, 9, 30])
def test_it_is_a_mask_of_the_first_places(sampling, n):
    toy = Toy()
    bare = naive(toy, PROMPT, sampling, 40, seed=sampling.seed, eos=ENDS)
    assert len(bare) < 30
    truth = naive(toy, PROMPT, sampling, 40, seed=sampling.seed, eos=ENDS, mask=mask(n))
    for kind in WAYS:
        strategy = way(kind, PROMPT + truth) | MinTokens(n)
        session = written(toy, PROMPT, strategy, sampling=sampling, eos=ENDS)
        assert session.output_ids == truth
        assert not session.recovery_states
        assert len(session.sampler.processors) == bool(sampling.before)


@pytest.mark.parametrize("kind", WAYS)
def test_every_masked_end_is_an_intervention(kind):
    toy = Toy(law=lambda text: [5, 0, 0, 3, 4] + [0] * 8 if len(text) % 2 else [0, 0, 4, 3, 2] + [0] * 8)
    session = written(toy, PROMPT, way(kind, [*PROMPT, 2, 4, 2, 4, 2, 0]) | MinTokens(5), eos=ENDS)
    assert session.output_ids == [2, 4, 2, 4, 2, 0]
    assert [(each.action, each.reason) for each in session.interventions] == [
        ("mask", "an end was likeliest after 1 tokens, of at least 5"),
        ("mask", "an end was likeliest after 3 tokens, of at least 5"),
    ]


def test_where_only_an_end_can_follow_it_does():
    only = np.full(13, -np.inf)
    only[0] = 1
    session = written(Toy(law=lambda text: only), PROMPT, way("plain", ()) | MinTokens(5), eos=ENDS)
    assert session.output_ids == [0]


def test_none_is_off():
    session = written(Toy(law=lambda text: [9] + [0] * 12), PROMPT, way("plain", ()) | MinTokens(0), eos=ENDS)
    assert (session.output_ids, session.sampler.processors) == ([0], ())
    with pytest.raises(RequestError, match="min_tokens: must be 0 or more, got -1"):
        MinTokens(-1)
