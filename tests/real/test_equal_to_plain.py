"""Published models: every strategy writes the tokens of plain decoding, for any batch, prefix cache and type of KV cache.

Cases are a pairwise cover: any two settings of two factors occur together. Each case continues its share of the prompts, so
that with each type of KV cache all prompts are continued.
"""

from functools import cache
from itertools import combinations, product

import pytest
from real_models import DEVICE, FILES, THREADS, path_of

import dflash
from dflash.decode.drafters.adaptive.drafter import Adaptive
from dflash.decode.drafters.draft_model import DraftModel
from dflash.decode.drafters.first_of import FirstOf
from dflash.decode.drafters.prompt_lookup import PromptLookup
from dflash.decode.drafting.drafter import Strategy
from dflash.decode.drafting.shapes import Chain, Tree
from dflash.evaluation.prompt_sets import BUNDLED, load_prompts
from dflash.generation.prompts import encode

pytestmark = pytest.mark.real

LENGTHS = {"smollm2": (10, 200), "coder": (3, 100)}
"""Prompts of each bundled set, and tokens of each output."""
KV = "f16", "f32", "q8_0", "q4_0"
BATCHES = 1, 3, 8
STRATEGIES = {
    "lookup": lambda _: Strategy(PromptLookup()),
    "lookup, short": lambda _: Strategy(PromptLookup(min_ngram=1), Chain(3)),
    "draft-model": lambda file: Strategy(DraftModel(file), Chain(3)),
    "draft-model tree": lambda file: Strategy(DraftModel(file), Tree(9)),
    "first": lambda file: Strategy(FirstOf(PromptLookup(), DraftModel(file)), Chain(4)),
    "adaptive": lambda file: Strategy(Adaptive(PromptLookup(), DraftModel(file))),
}
"""Strategies; each model is its own small model, so that most draft tokens are right."""


def cases():
    """Strategy, type of KV cache, batch size, whether the prefix cache is used, and the number of the strategy."""
    for (s, strategy), (k, kv) in product(enumerate(STRATEGIES), enumerate(KV)):
        yield strategy, kv, BATCHES[(s + k) % 3], (s + k // 2) % 2 == 1, s


def test_cases_are_a_pairwise_cover():
    rows = [case[:4] for case in cases()]
    factors = tuple(STRATEGIES), KV, BATCHES, (False, True)
    for a, b in combinations(range(4), 2):
        assert {(row[a], row[b]) for row in rows} == set(product(factors[a], factors[b])), (a, b)


@cache
def prompts_of(name):
    """Prompts of all bundled sets in turn, with their options."""
    n = LENGTHS[name][0]
    return [case for row in zip(*(load_prompts(one)[:n] for one in BUNDLED), strict=True) for case in row]


@pytest.fixture(scope="module")
def load():
    """Loads a model with a type of KV cache; the one before is closed."""
    held = {}

    def get(name, kv):
        if (name, kv) not in held:
            for one in held.values():
                one[0].close()
            held.clear()
            lm = dflash.load(
                path_of(name), device=DEVICE, threads=THREADS, context=2048, sequences=max(BATCHES), kv=kv, prefix_cache=True
            )
            ids = [
                encode(case.prompt, lm.tokenizer, lm.template, tools=case.options.get("tools")) for case in prompts_of(name)
            ]
            held[name, kv] = lm, ids, written(lm, ids, "plain", name)
        return held[name, kv]

    yield get
    for one in held.values():
        one[0].close()


def written(lm, prompts, strategy, name, *, batch=8, prefix_cache=False):
    """Greedy output ids of each prompt, `batch` at a time; they do not stop at an end token."""
    found, n = [], LENGTHS[name][1]
    settings = {"strategy": strategy, "max_tokens": n, "ignore_eos": True, "prefix_cache": prefix_cache, "temperature": 0}
    for start in range(0, len(prompts), batch):
        outputs = lm.generate(prompts[start : start + batch], **settings)
        found += [output.tokens for output in outputs]
    assert [len(ids) for ids in found] == [n] * len(prompts)
    return found


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    ("strategy", "kv", "batch", "cached", "number"), sorted(cases(), key=lambda case: KV.index(case[1]))
)
def test_equal_to_plain(name, strategy, kv, batch, cached, number, load):
    lm, prompts, plain = load(name, kv)
    share = slice(number, None, len(STRATEGIES))
    for _ in range(2 if cached else 1):  # the second time, prompts are in the cache
        got = written(lm, prompts[share], STRATEGIES[strategy](str(path_of(name))), name, batch=batch, prefix_cache=cached)
        for i, (ids, want) in enumerate(zip(got, plain[share], strict=True)):
            assert ids == want, f"prompt {prompts_of(name)[number + i * len(STRATEGIES)].name}"
    hits = lm.prefix_cache.stats.hits
    assert not cached or hits
