"""Hostile grammars beside a neighbour: refused with one sentence or run to an end, and the neighbour misses no step."""

from contextlib import closing

import pytest
from demo_text import demo_tokenizer
from hostile_grammars import hostile_fields
from schemas import scribbler

from dflash.decode.drafters.prompt_lookup import PromptLookup
from dflash.decode.drafting.drafter import Plain, Strategy
from dflash.decode.engine import Engine
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.errors import RequestError
from dflash.generation.grammar import guidance
from dflash.generation.grammar.build import grammars
from dflash.generation.grammar.guidance import GuidanceMatcher, GuidanceVocabulary
from dflash.generation.grammar.limits import MAX_CHARACTERS
from dflash.generation.grammar.params import GrammarParams

PROMPT = [5, 6, 7]
CASES, LOTS = 200, 10
TOKENS, NEIGHBOUR = 16, 24


@pytest.fixture(scope="module")
def checker():
    vocabulary = GuidanceVocabulary.of(demo_tokenizer())
    with closing(vocabulary.isolate()) as checker:
        yield checker
    vocabulary.checker = None


def session(seed, grammar=None, n=TOKENS, drafts=False):
    sampling = Sampling(temperature=1.0, seed=seed)
    strategy = Strategy(PromptLookup()) if drafts else Plain()
    eos = () if grammar is None else demo_tokenizer().eos_ids
    return Session(PROMPT, grammar=grammar, sampling=sampling, strategy=strategy, max_tokens=n, eos=eos)


@pytest.mark.parametrize("lot", range(LOTS))
def test_hostile_grammars_cost_a_bounded_time(checker, monkeypatch, lot):
    built, masks = [], []
    compile_, mask = guidance.compile_source, GuidanceMatcher.mask
    monkeypatch.setattr(guidance, "compile_source", lambda inner, text: (built.append(len(text)), compile_(inner, text))[1])
    monkeypatch.setattr(GuidanceMatcher, "mask", lambda self: (masks.append(self), mask(self))[1])
    accepted = []
    for seed in range(lot, CASES, LOTS):
        try:
            (grammar,) = grammars(GrammarParams(**hostile_fields(seed)), [(PROMPT, False)], demo_tokenizer())
            accepted.append((seed, grammar))
        except RequestError as error:
            assert len(str(error)) < 600
            assert "\n" not in str(error)
    assert all(n_characters <= 4 * MAX_CHARACTERS for n_characters in built), "what the engine's process compiles is bounded"
    assert len(built) <= CASES / LOTS, "refused ones are not compiled here, or fail at once"
    alone, neighbour = session(1, n=NEIGHBOUR), session(1, n=NEIGHBOUR)
    list(Engine(scribbler()).run([alone]))
    hostile = [session(seed, grammar, drafts=seed % 2 > 0) for seed, grammar in accepted]
    engine, n_steps, seen = Engine(scribbler()), 0, 0
    engine.add_all([neighbour, *hostile])
    while engine.busy:
        events = engine.step()
        if not neighbour.finished:
            n_steps += 1
        seen += any(one is neighbour for one, _ in events)
    assert neighbour.output_ids == alone.output_ids
    assert n_steps <= NEIGHBOUR + 2, "a step of the neighbour is never left out"
    assert {one.finish_reason for one in hostile} <= {"stop", "length", "error"}
    assert all(isinstance(one.error, RequestError) for one in hostile if one.finish_reason == "error")
    of_each = {id(each): masks.count(each) for each in masks}
    assert max(of_each.values(), default=0) <= 4 * (TOKENS + 1), "of a step, the root and the accepted drafts"
