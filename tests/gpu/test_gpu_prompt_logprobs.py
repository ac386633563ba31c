"""Log-probabilities of prompt tokens on a GPU: those of the logits, also with sessions that decode in the same forwards."""

import numpy as np
import pytest
from written import demo_on_gpu, tokens

import dflash
from dflash.decode.drafters.dflash import DFlash
from dflash.decode.drafting.drafter import Plain, Strategy
from dflash.decode.drafting.shapes import Chain
from dflash.decode.engine import Engine
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session

pytest.importorskip("cupy")

TEXTS = ["def fibonacci(n):\n    if n < 2:\n" * 12, "Once upon a time", "import heapq\n\n\nclass Queue:\n" * 9]
CHAIN = Strategy(DFlash(), Chain())

demo, plain = demo_on_gpu(TEXTS, context=2048, sequences=5)


def scored(model, prompt, strategy, sampling, n):
    return Session(prompt, sampling=sampling, strategy=strategy, max_tokens=n, prompt_logprobs=3)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=3)], ids=["greedy", "T 1"])
@pytest.mark.parametrize("strategy", [Plain(), CHAIN], ids=["plain", "chain"])
def test_beside_sessions_that_decode(sampling, strategy):
    model, prompts = demo()
    wanted = plain(sampling)
    alone = [scored(model, prompt, strategy, sampling, 1) for prompt in prompts]
    for session in alone:
        list(Engine(model).run([session]))
    beside = [Session(prompts[1], sampling=sampling, strategy=strategy, max_tokens=len(wanted[1])) for _ in range(2)]
    together = [scored(model, prompt, strategy, sampling, len(want)) for prompt, want in zip(prompts, wanted, strict=True)]
    list(Engine(model).run([beside[0], *together, beside[1]]))
    assert tokens(together) == wanted
    assert tokens(beside) == [wanted[1]] * 2
    for one, other in zip(together, alone, strict=True):
        assert one.scored_prompt == other.scored_prompt


def test_they_are_those_of_the_logits():
    with dflash.load("demo", device="cuda", context=2048) as lm:
        for text in TEXTS:
            answer = lm.generate(text, max_tokens=1, prompt_logprobs=2)
            logits = lm.logits(text).astype(np.float64)
            ids = lm.encode(text)
            logprobs = logits - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True))
            logprobs -= logits.max(1, keepdims=True)
            found = answer.prompt_logprobs
            assert [each.token for each in found] == list(ids)[1:]
            for row, each in zip(logprobs[:-1], found, strict=True):
                assert each.logprob == pytest.approx(row[each.token], abs=1e-4)
                assert each.rank == 1 + int(np.count_nonzero(row > row[each.token]))
                assert [value for _, value in each.top] == pytest.approx(np.sort(row)[::-1][:2], abs=1e-4)
