"""Verifiers at work: drafts that are sampled, the tokens that come out, and where other strategies are refused."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from long_form import LONG
from marginals import Marginals, bigram_target, law_of, laws, z_of
from toy import Toy

import dflash
from dflash.__main__ import main
from dflash.decode.drafting.draft import Draft, DraftProbs
from dflash.decode.drafting.drafter import Strategy
from dflash.decode.drafting.sampled_chain import sampled_chain
from dflash.decode.drafting.shapes import Chain, Tree
from dflash.decode.engine import Engine
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.decode.verifiers import BlockVerification, RejectionSampling, Typical, parse
from dflash.decode.verifiers.base import Taken
from dflash.decode.verify import verify
from dflash.errors import RequestError
from dflash.kernels import sample
from dflash.kernels.sample import SampleParams
from dflash.model.candidates import Candidates

V, N = 9, 8_000 if LONG else 3_000
TARGET, DRAFT = laws(V, 1, 1.3), laws(V, 1, 1.3) + laws(V, 2, 0.7)
SAMPLINGS = [Sampling(temperature=1.0), Sampling(temperature=1.2, top_k=7, top_p=0.9, min_p=0.05)]
LOSSLESS = [RejectionSampling(), BlockVerification()]
LIMIT = 3.5
"""Largest z of a chi-square test. One of two tokens (8 degrees of freedom, N sequences) finds a distribution that is wrong
by ``sum((wrong - right)**2 / right) = 37 / N`` with a probability of 0.9: noncentrality 37. DFLASH_LONG=1 takes more."""


@dataclass(frozen=True)
class Wrong(RejectionSampling):
    """Samples from the target's distribution after a rejection, and not from what is left of it."""

    def take(self, draft, target):
        found = super().take(draft, target)
        return Taken(found.tokens) if found is not None else None


def pairs_of(verifier, sampling, drafter):
    """Count the first two tokens after token 3 over N seeds."""
    pairs = np.zeros((V, V))
    for seed in range(N):
        options = Sampling(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, seed=seed)
        session = Session([3], sampling=options, strategy=Strategy(drafter, verifier=verifier), max_tokens=8)
        session.max_length, drafter_state = 9, drafter.start(session, None)
        while session.n_tokens < 2:
            draft = drafter_state.propose(4)
            session.append(verify(draft, TARGET[[session.token_ids[-1], *draft.tokens]], session))
        pairs[tuple(session.output_ids[:2])] += 1
    return pairs


def z_of_pairs(pairs, sampling):
    """Return z of the first token, and of both."""
    first = law_of(TARGET[3], sampling)
    both = first[:, None] * np.stack([law_of(row, sampling) for row in TARGET])
    return z_of(pairs.sum(axis=1), first), z_of(pairs.ravel(), both.ravel())


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=repr)
@pytest.mark.parametrize("verifier", LOSSLESS, ids=repr)
def test_tokens_over_many_seeds_have_the_targets_distribution(verifier, sampling):
    assert max(z_of_pairs(pairs_of(verifier, sampling, Marginals(DRAFT)), sampling)) < LIMIT


def test_the_same_test_finds_a_wrong_verifier():
    assert max(z_of_pairs(pairs_of(Wrong(), SAMPLINGS[0], Marginals(DRAFT)), SAMPLINGS[0])) > 2 * LIMIT


@pytest.mark.parametrize("n_vocab", [5, 64])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=repr)
def test_probabilities_of_a_draft_are_those_of_its_logits(sampling, n_vocab):
    """Without the noise that chose the token, candidates hold the drafter's distribution; over seeds, tokens follow it."""
    logits, counts = laws(n_vocab, 7, 1.5)[:2], np.zeros((2, n_vocab))
    laws_ = [law_of(row, sampling) for row in logits]
    for seed in range(3000):
        params = Session([0], sampling=sampling).sampler.params._replace(seed=seed)
        ids, scores = np.empty((2, sample.POOL), np.int32), np.empty((2, sample.POOL), np.float32)
        sample.candidates(logits, [params] * 2, [5, 6], sample.POOL, ids=ids, scores=scores)
        draft = sampled_chain(Candidates(ids, scores), 2, params, 5)
        for i, (token, law) in enumerate(zip(draft.tokens, laws_, strict=True)):
            counts[i, token] += 1
            assert np.abs(draft.probs.row(i, n_vocab) - law).max() < 1e-5
    assert max(z_of(row, law) for row, law in zip(counts, laws_, strict=True)) < LIMIT


def test_pairs_are_sampled_given_the_token_before():
    """Where candidates depend on each other, each distribution is that after the token taken before."""
    params, edges = SampleParams(scale=1.0, seed=4), np.log(np.random.default_rng(0).dirichlet(np.ones(4), (3, 4)))
    ids, noise = np.tile(np.arange(4, dtype=np.int32), (3, 1)), np.empty((3, 4), np.float32)
    for t in range(3):
        sample.gumbel(4, 10 + t, ids[t], out=noise[t])
    lifted = (edges + noise[:, None]).astype(np.float32)
    draft = sampled_chain(Candidates(ids, np.zeros((3, 4), np.float32), lifted), 8, params, 10)
    before = 0
    for t, token in enumerate(draft.tokens.tolist()):
        assert token == lifted[t, before].argmax()
        assert draft.probs.row(t, 4) == pytest.approx(np.exp(edges[t, before]), abs=1e-5)
        before = token
    assert len(draft) == 3
    assert draft.cut(2).probs.ids.shape == (2, 4)


@pytest.mark.parametrize("verifier", [*LOSSLESS, Typical()], ids=repr)
def test_at_temperature_0_all_verifiers_give_the_tokens_of_coupled(verifier):
    toy = bigram_target(TARGET)
    sessions = [Session([3], strategy=Strategy(Marginals(DRAFT)), max_tokens=40)]
    sessions.append(Session([3], strategy=Strategy(Marginals(DRAFT), verifier=verifier), max_tokens=40))
    list(Engine(toy).run(sessions))
    assert sessions[0].output_ids == sessions[1].output_ids
    assert [step.accepted for step in sessions[0].steps] == [step.accepted for step in sessions[1].steps]
    assert not sessions[1].warnings


@pytest.mark.parametrize("verifier", LOSSLESS, ids=repr)
def test_a_session_gives_the_same_tokens_in_every_batch(verifier):
    def made(seed):
        sampling = Sampling(temperature=1.0, seed=seed, frequency_penalty=0.3)
        return Session([3], sampling=sampling, strategy=Strategy(Marginals(DRAFT), verifier=verifier), max_tokens=60)

    toy, alone = bigram_target(TARGET), made(5)
    together = [made(seed) for seed in range(12)]
    for sessions in ([alone], together):
        list(Engine(toy).run(sessions))
    assert alone.output_ids == together[5].output_ids
    assert len({tuple(session.output_ids) for session in together}) == 12


def test_drafts_share_no_noise_with_the_target_or_with_each_other():
    session = Session([3], sampling=Sampling(temperature=1.0, seed=7), strategy=Strategy(Marginals(DRAFT)))
    assert session.sampler.draft_params(9) == session.sampler.params
    strategy = Strategy(Marginals(DRAFT), verifier=RejectionSampling())
    drawing = Session([3], sampling=Sampling(temperature=1.0, seed=7), strategy=strategy)
    seeds = {drawing.sampler.draft_params(n).seed for n in range(100)}
    assert len(seeds | {7}) == 101


def test_typical_takes_what_is_likely_enough_and_nothing_else():
    p = np.array([0.5, 0.3, 0.15, 0.05])
    toy = Toy(4, law=lambda text: np.log(p))
    strategy = Strategy(Marginals(DRAFT), verifier=Typical(epsilon=0.2, delta=1.0))
    session = Session([3], sampling=Sampling(temperature=1.0, seed=0), strategy=strategy)
    session.max_length = 50
    for tokens, n in (([1, 0, 1], 3), ([0, 2, 0], 1), ([3], 0)):
        accepted = verify(Draft(tokens), np.stack([toy.after([3])] * (1 + len(tokens))), session)
        assert accepted.n_accepted == n
        assert len(accepted.tokens) == n + 1
    tree = Draft([2, 1, 3, 0], [-1, -1, 1, 1])
    assert verify(tree, np.stack([toy.after([3])] * 5), session).rows == [0, 2, 4]
    assert "lossy" in session.warnings[0]
    assert "lossy" in repr(strategy)


def test_a_tree_and_a_drafter_that_chooses_sizes_are_refused():
    for verifier in LOSSLESS:
        with pytest.raises(RequestError, match=r"needs a chain of draft tokens, got Tree\(8\); use Chain\(\)"):
            Strategy(dflash.MTP(), Tree(8), verifier=verifier)
        with pytest.raises(RequestError, match="does not choose draft sizes, got Adaptive"):
            Strategy(dflash.Adaptive("lookup"), verifier=verifier)
        with pytest.raises(RequestError, match="needs a chain"):
            Strategy("ddtree:22", verifier=verifier)
        assert Strategy(dflash.MTP(), Chain(2), verifier=verifier) != Strategy(dflash.MTP(), Chain(2))
    with pytest.raises(RequestError, match="wanted a verifier, as RejectionSampling"):
        Strategy("mtp", verifier="rejection")


@pytest.mark.parametrize("value", [0, 1.5, "0.1", True, float("nan")])
def test_settings_of_typical_are_checked(value):
    with pytest.raises(RequestError, match=r"^Typical: delta must be above 0"):
        Typical(delta=value)


def test_verifiers_are_made_from_names():
    assert [parse(text) for text in ("rejection", "block", "typical", "typical:0.2:0.5")] == [
        *(RejectionSampling(), BlockVerification(), Typical(), Typical(0.2, 0.5))
    ]
    assert Strategy("plain", verifier=parse("coupled")) == Strategy()
    for text in ("", "Rejection", "typical:x", "typical:1:1:1", "block:2"):
        with pytest.raises(RequestError, match=r"^verifier: wanted coupled, rejection, block or typical"):
            parse(text)


def test_a_row_of_probabilities_is_dense():
    probs = DraftProbs(np.array([[2, 0, -1]], np.int32), np.array([[0.75, 0.25, 0.0]]))
    assert probs.row(0, 4).tolist() == [0.25, 0, 0.75, 0]


@pytest.mark.parametrize("verifier", [*LOSSLESS, Typical()], ids=repr)
def test_drafts_of_the_demo(lm, verifier):
    """Heads and draft models give their distributions; greedy requests agree, sampled ones are marked."""
    names, prompt = ["mtp:3", "dflash:4"], "def mean(values):\n    return"
    strategies = {name: replace(Strategy.of(name), verifier=verifier) for name in names}
    found = dflash.compare(lm, [prompt], {"plain": "plain", **strategies}, max_tokens=24)
    assert found.same_text
    assert "same" in repr(found)
    sampled = dflash.compare(lm, [prompt], {"plain": "plain", **strategies}, max_tokens=24, temperature=1.0)
    assert sampled.same_text
    assert verifier.guarantee in repr(sampled)
    assert all(row.accepted > 0 for row in list(sampled)[1:])
    for row in list(sampled)[1:]:
        assert row.as_dict()["guarantee"] == verifier.guarantee
        drafts = [step.draft for one in row.generations for step in one.steps if step.drafted]
        assert all((draft.probs is not None) == verifier.draws for draft in drafts)


def test_a_small_model_as_drafter_of_itself_is_always_accepted(lm):
    """The draft has the target's own distribution, limited to its likeliest 64 tokens, as the target's is here."""
    strategy = Strategy(dflash.DraftModel("demo"), Chain(3), verifier=RejectionSampling())
    found = lm.generate("import os\n", strategy=strategy, max_tokens=32, temperature=1.0, top_k=20, seed=3)
    assert found.acceptance == 1.0


def test_the_command_line_names_verifiers(capsys):
    arguments = ["bench", "demo", "--strategies", "plain,mtp:3", "--prompts", "copy", "-n", "4", "--temperature", "1"]
    assert main([*arguments, "--verifier", "typical"]) == 0
    assert "lossy" in capsys.readouterr().out
    assert main(["bench", "demo", "--verifier", "block"]) == 1
    assert "--verifier: not used by measurements without --strategies" in capsys.readouterr().err
