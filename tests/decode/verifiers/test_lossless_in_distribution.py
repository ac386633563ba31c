"""Verifiers that keep the target's distribution: all outcomes of a step are counted, with their probabilities."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
from enumeration import branching, enumerated, outcomes
from oracles import ruled
from word_grammar import WordGrammar

from dflash.decode import verify as module
from dflash.decode.drafters.prompt_lookup import PromptLookup
from dflash.decode.drafting.draft import Draft, DraftProbs
from dflash.decode.drafting.drafter import Strategy
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.decode.verifiers import BlockVerification, RejectionSampling

V, DEPTH, PROMPT, END = 3, 3, [1, 2], 0
CASES = {
    "temperature 1": {},
    "temperature 0.6, top-k": {"temperature": 0.6, "top_k": 2},
    "penalties": {"repetition_penalty": 1.7, "presence_penalty": 0.8, "logit_bias": {1: 0.5}},
    "top-p": {"top_p": 0.8},
    "end token": {},
    "length": {},
    "grammar": {},
}
DRAFTERS = ["other", "of two tokens", "the target's", "point mass"]


def rule(path):
    """Never a token twice in a row, and only 2 after 0."""
    return {2} if path and path[-1] == 0 else set(range(V)) - set(path[-1:])


class Law:
    """Logits of the target and distributions of a drafter after every path."""

    def __init__(self, seed, drafter, case):
        self.random = np.random.default_rng(seed)
        self.case, self.sampling = case, Sampling(**{"temperature": 1.0, "seed": 0, **CASES[case]})
        paths = [path for n in range(DEPTH + 2) for path in product(range(V), repeat=n)]
        self.logits = {path: (1.5 * self.random.standard_normal(V)).astype(np.float32) for path in paths}
        self.q = {path: self.draft_law(drafter, path) for path in paths}

    def draft_law(self, drafter, path):
        if drafter == "the target's":
            return self.p(path)
        if drafter == "point mass":
            return np.eye(V)[self.random.integers(V)]
        q = self.random.dirichlet(np.ones(V))
        if drafter == "of two tokens":
            q[self.random.integers(V)] = 0
        return q / q.sum()

    def p(self, path):
        """The target's distribution from the definitions."""
        logits = ruled(self.logits[path], [*PROMPT, *path], len(PROMPT), self.sampling)
        if self.case == "grammar":
            logits[[token for token in range(V) if token not in rule(path)]] = -np.inf
        for processor in self.sampling.after:
            logits = processor(logits, None)
        weights = np.exp(logits.astype(np.float64))
        return weights / weights.sum()

    def session(self, verifier):
        grammar = WordGrammar(rule, n_vocab=V) if self.case == "grammar" else None
        ends = [END] if self.case == "end token" else []
        strategy = Strategy(PromptLookup(), verifier=verifier)
        session = Session(PROMPT, sampling=self.sampling, strategy=strategy, grammar=grammar, eos=ends)
        session.max_length = len(PROMPT) + (2 if self.case == "length" else 50)
        return session

    def ended(self, path):
        return (self.case == "end token" and END in path) or (self.case == "length" and len(path) == 2)


def step(law, verifier, monkeypatch):
    """Yield output and number of accepted draft tokens of one step, with their probability."""

    def run(branches):
        session = branching(law.session(verifier), branches)
        tokens, rows = (), []
        for _ in range(DEPTH):
            rows.append(law.q[tokens])
            tokens += (branches.choose(rows[-1].tolist()),)
        probs = DraftProbs(np.tile(np.arange(V, dtype=np.int32), (DEPTH, 1)), np.array(rows))
        draft = Draft(tokens, probs=probs)
        if session.grammar is not None:
            draft = session.grammar.fit(draft, DEPTH)
        logits = np.stack([law.logits[tuple(draft.tokens[:i].tolist())] for i in range(len(draft) + 1)])
        monkeypatch.setattr(module, "DraftPath", enumerated(branches))
        accepted = module.verify(draft, logits, session)
        return tuple(accepted.tokens), accepted.n_accepted

    yield from outcomes(run)


def completed(law, found, path, probability):
    """Add the target's own continuations of a path."""
    if law.ended(path) or len(path) == DEPTH + 1:
        found[path] += probability
        return
    for token, p in enumerate(law.p(path)):
        if p > 0:
            completed(law, found, (*path, token), probability * p)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("verifier", [RejectionSampling(), BlockVerification()], ids=repr)
def test_sum_over_all_outcomes_is_the_targets_distribution(verifier, case, drafter, monkeypatch):
    for seed in range(3):
        law, found, wanted = Law(seed, drafter, case), Counter(), Counter()
        for (tokens, _), probability in step(law, verifier, monkeypatch):
            completed(law, found, tokens, probability)
        completed(law, wanted, (), 1.0)
        assert sum(found.values()) == pytest.approx(1, abs=1e-9)
        assert found.keys() == wanted.keys()
        for path, probability in wanted.items():
            assert found[path] == pytest.approx(probability, abs=2e-7)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_acceptance_rates_are_those_of_the_papers(drafter, monkeypatch):
    for seed in range(8):
        law, mean, first = Law(seed, drafter, "temperature 1"), {}, {}
        for verifier in (RejectionSampling(), BlockVerification()):
            all_ = list(step(law, verifier, monkeypatch))
            mean[verifier] = sum(n * probability for (_, n), probability in all_)
            first[verifier] = sum(probability for (_, n), probability in all_ if n)
        overlap = np.minimum(law.p(()), law.q[()]).sum()
        assert first[RejectionSampling()] == pytest.approx(overlap, abs=2e-7)
        assert mean[BlockVerification()] >= mean[RejectionSampling()] - 2e-7
        if drafter == "the target's":
            assert mean[RejectionSampling()] == pytest.approx(DEPTH, abs=1e-5)


def test_block_verification_accepts_more_where_tokens_make_up_for_each_other(monkeypatch):
    """A draft token that is too likely is accepted with a second one that is not likely enough."""
    law = Law(0, "other", "temperature 1")
    found = {
        verifier: sum(n * probability for (_, n), probability in step(law, verifier, monkeypatch))
        for verifier in (RejectionSampling(), BlockVerification())
    }
    assert found[BlockVerification()] > found[RejectionSampling()] + 0.01
