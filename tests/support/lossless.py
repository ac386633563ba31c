"""Tests that drafts change no output: the demo's prompts, samplings, and every drafter in every shape.

DFLASH_LONG=1 writes all prompts to their length under every sampling, a test for each, which takes hours on two cores.
"""

from functools import cache

import numpy as np
from demo_text import recorded_acceptance
from golden import chain
from long_form import LONG
from written import run

from dflash.decode.drafters.adaptive.drafter import Adaptive
from dflash.decode.drafters.ddtree import DDTree
from dflash.decode.drafters.dflash import DFlash
from dflash.decode.drafters.first_of import FirstOf
from dflash.decode.drafters.mtp import MTP
from dflash.decode.drafters.prompt_lookup import PromptLookup
from dflash.decode.drafting.drafter import Strategy
from dflash.decode.drafting.shapes import Chain, Tree
from dflash.decode.sampling.history import History
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.model.batch import Span
from dflash.model.loading.settings import LoadSettings
from dflash.model.loading.target import load_model

RECORDED = recorded_acceptance()
PROMPTS = [prompt["prompt_ids"] for prompt in RECORDED["prompts"]]
"""Code, text and questions."""

SAMPLINGS = {
    "greedy": {},
    "T 0.7": {"temperature": 0.7},
    "top-p": {"temperature": 1.0, "top_p": 0.9},
    "top-k, min-p": {"temperature": 1.0, "top_k": 40, "min_p": 0.05},
    "penalties": {"temperature": 1.0, "top_p": 0.95, "repetition_penalty": 1.2, "frequency_penalty": 0.2},
}
STRATEGIES = [
    Strategy(DFlash()),
    Strategy(DFlash(), Chain(3)),
    DDTree(budget=22),
    Strategy(DFlash(), Tree(60, depth=6)),
    Strategy(MTP()),
    Strategy(MTP(), Tree(8)),
    Strategy(PromptLookup()),
    Strategy(FirstOf(PromptLookup(), MTP())),
    Strategy(Adaptive(DDTree(budget=32), DFlash(), MTP(), PromptLookup())),
]
UNITS = (
    [(i, name) for i in range(len(PROMPTS)) for name in SAMPLINGS]
    if LONG
    else [(10 * i, name) for i, name in enumerate(SAMPLINGS)]
)
N = 200 if LONG else 24


@cache
def demo(device="cpu", kv="f16"):
    """The demo with room for all strategies at once."""
    return load_model("demo", LoadSettings(device=device, threads=2, context=2048, sequences=len(STRATEGIES), kv=kv))


def compare(model, prompt, strategies, n, *, tie=0.0, **settings):
    """Write a text by plain decoding, then with all strategies in one batch.

    Returns the sessions, and ``(strategy, place, margin)`` of each that went another way where a tree was verified and the
    two tokens were nearer to each other than `tie`.
    """
    sampling = Sampling(**settings, seed=n)
    plain = Session(prompt, sampling=sampling, max_tokens=n)
    sessions = [Session(prompt, sampling=sampling, max_tokens=n, strategy=strategy) for strategy in strategies]
    (truth,) = run(model, plain)
    parted = []
    for session, tokens in zip(sessions, run(model, *sessions), strict=True):
        if tokens == truth:
            continue
        at = next(i for i, pair in enumerate(zip(tokens, truth, strict=True)) if len(set(pair)) > 1)
        forks = any(step.draft.parents.tolist() != list(range(-1, step.drafted - 1)) for step in session.steps)
        parted.append((session.strategy, at, margin(model, plain, at, tokens[at])))
        assert forks, parted[-1]
        assert parted[-1][2] < tie, parted[-1]
    return sessions, parted


def margin(model, session, at, token):
    """Return the size of random logit errors at which another token would be sampled at a position of an output.

    No single logit tells: which token is the last of a nucleus hangs on the sum of all above it.
    """
    history = History(session.prompt_ids)
    if session.history.counts is not None:
        history.count()
    for each in session.output_ids[:at]:
        history.push(each)
    state = model.state()
    out = model.forward([Span(state, np.array(history.token_ids, np.int32), chain(len(history)), prefill=True)])
    row = np.array(np.asarray(out.logits)[-1])
    state.close()
    errors = np.random.default_rng(at).standard_normal((64, len(row)), np.float32)
    for size in (2.0**power for power in range(-16, 6)):
        if any(session.sampler.sample(row + size * error, history) == token for error in errors):
            return size
    return np.inf


def assert_nothing_is_held(model):
    """Pools of the model and of all attached draft models."""
    pools = [model.pools, *(each.pools for each in model.attachments.values() if hasattr(each, "pools"))]
    for pool in pools:
        assert (pool.free_pages, pool.free_slots) == (pool.pages, pool.slots)
    for draft in (each for each in model.attachments.values() if hasattr(each, "reach")):
        assert draft.free_slots == model.pools.slots


def assert_unit(device, prompt, name, **settings):
    """One text by every strategy."""
    model = demo(device).model
    sessions, parted = compare(model, PROMPTS[prompt], STRATEGIES, N, **SAMPLINGS[name], **settings)
    for session in sessions:
        # texts need not repeat themselves, and who chooses may find that nothing pays
        unsure = isinstance(session.strategy.drafter, PromptLookup | Adaptive)
        assert session.n_accepted > 0 or session.n_tokens < 20 or unsure
    assert_nothing_is_held(model)
    return parted
