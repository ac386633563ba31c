"""Verifiers on a GPU: drafts come to the host with their distributions, and tokens are accepted by these."""

import numpy as np
import pytest
from compare import assert_close
from golden import load, recorded
from mtp_text import NAME
from written import run

from dflash.decode.drafters.mtp import MTP
from dflash.decode.drafting.drafter import Plain, Strategy
from dflash.decode.drafting.shapes import Chain
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.decode.verifiers import BlockVerification, RejectionSampling, SyntheticAcceptance, Typical

VERIFIERS = [RejectionSampling(), BlockVerification(), Typical()]


def made(verifier, temperature=1.0):
    prompt = recorded(NAME)["mtp.chain_inputs"][:1].astype(int).tolist() * 3
    strategy = Strategy(MTP(), Chain(3), verifier=verifier)
    return Session(prompt, sampling=Sampling(temperature=temperature, seed=4), strategy=strategy, max_tokens=10)


@pytest.mark.parametrize("verifier", VERIFIERS, ids=repr)
def test_a_session_alone_and_in_company(verifier):
    model = load(NAME, kv="f32", device="cuda")
    alone, several = made(verifier), [made(verifier), Session([5, 6], strategy=Plain(), max_tokens=6), made(verifier)]
    (tokens,), (first, _, second) = run(model, alone), run(model, *several)
    assert tokens == first == second
    drafts = [step.draft for step in alone.steps if step.drafted]
    assert drafts
    for draft in drafts:
        assert (draft.probs is not None) == verifier.draws
        if verifier.draws:
            assert draft.probs.values.sum(axis=1) == pytest.approx(np.ones(len(draft)))
            rows = [draft.probs.row(i, model.n_vocab)[token] for i, token in enumerate(draft.tokens)]
            assert min(rows) > 0


@pytest.mark.parametrize("length", [1.0, 2.52, 4.0])
def test_with_a_synthetic_acceptance_drafts_are_launched_ahead(length, monkeypatch):
    """More than half of the drafts are, and the steps equal those whose drafts wait for the tokens, alone and in a batch."""
    model, verifier = load(NAME, kv="f16", device="cuda"), SyntheticAcceptance(length)
    MTP().prepare(model)
    head, used, steps = model.attachments[MTP()], [], []

    def ready(requests, anchors, function=head.ready):
        used.append(function(requests, anchors))
        return used[-1]

    monkeypatch.setattr(head, "ready", ready)
    for ahead in (True, False):
        monkeypatch.setattr(model, "can_overlap", ahead)
        sessions = [made(verifier, temperature=0), made(verifier, temperature=0)]
        run(model, sessions[0])
        run(model, *sessions[1:], made(verifier))
        steps.append([[(step.tokens, step.accepted) for step in session.steps] for session in sessions])
        assert sum(one is not None for one in used) > len(used) // 2 if ahead else not any(used)
        used.clear()
    assert steps[0] == steps[1]
    assert steps[0][0] == steps[0][1]


@pytest.mark.parametrize("verifier", VERIFIERS, ids=repr)
def test_at_temperature_0_the_tokens_are_those_of_plain_decoding(verifier):
    model = load(NAME, kv="f32", device="cuda")
    drafted = made(verifier, temperature=0)
    plain = Session(drafted.prompt_ids, strategy=Plain(), max_tokens=10)
    found, wanted = run(model, drafted, plain)
    assert found == wanted


def test_distributions_are_those_of_the_cpu():
    """Both first drafts follow the same tokens; their distributions differ by the float16 activations of a GPU."""
    rows = []
    for device in ("cpu", "cuda"):
        model, session = load(NAME, kv="f32", device=device), made(RejectionSampling())
        run(model, session)
        draft = next(step.draft for step in session.steps if step.drafted)
        rows.append(draft.probs.row(0, model.n_vocab))
    assert_close("q", rows[1], rows[0], 2e-2)
