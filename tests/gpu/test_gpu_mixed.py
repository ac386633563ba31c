"""Sessions of several strategies in one batch on a GPU: each text as alone, and drafts run ahead for those who want them."""

import pytest
from written import demo_on_gpu, tokens, written

from dflash.decode.drafters.dflash import DFlash
from dflash.decode.drafters.mtp import MTP
from dflash.decode.drafters.prompt_lookup import PromptLookup
from dflash.decode.drafting.drafter import Plain, Strategy
from dflash.decode.drafting.shapes import Chain, Tree
from dflash.decode.engine import Engine
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session

pytest.importorskip("cupy")

TEXTS = [
    "def fibonacci(n):\n    if n < 2:\n",
    "Once upon a time",
    "import heapq\n\n\nclass Queue:\n",
    "The capital of France is",
]
SAMPLINGS = [Sampling(), Sampling(temperature=1.0, seed=3)]
CHAIN, TREE, HEAD = Strategy(DFlash(), Chain()), Strategy(DFlash(), Tree(12)), Strategy(MTP(), Chain(3))
MIXTURES = {
    "two plain, two chains": (Plain(), CHAIN, Plain(), CHAIN),
    "the other way round": (CHAIN, CHAIN, Plain(), Plain()),
    "a tree and a chain": (TREE, Plain(), CHAIN, Plain()),
    "two drafters": (HEAD, CHAIN, HEAD, CHAIN),
    "all": (CHAIN, Plain(), HEAD, Strategy(PromptLookup())),
}
N = 60

demo, plain = demo_on_gpu(TEXTS, context=2048, sequences=4)


def mixed(strategies, sampling):
    """Texts of as many tokens as those of `plain`."""
    model, prompts = demo()
    sessions = [
        Session(prompt, sampling=sampling, strategy=strategy, max_tokens=len(want))
        for prompt, strategy, want in zip(prompts, strategies, plain(sampling), strict=True)
    ]
    list(Engine(model).run(sessions))
    return sessions


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "T 1"])
@pytest.mark.parametrize("strategies", MIXTURES.values(), ids=MIXTURES)
def test_each_as_alone(strategies, sampling, monkeypatch):
    """The same tokens, and the same draft tokens are right, as where nothing is begun before the host has looked."""
    model, _ = demo()
    steps = []
    for ahead in (True, False):
        monkeypatch.setattr(model, "can_overlap", ahead)
        sessions = mixed(strategies, sampling)
        assert tokens(sessions) == plain(sampling)
        steps.append([[(step.tokens, step.accepted) for step in session.steps] for session in sessions])
    assert steps[0] == steps[1]


def test_drafts_are_launched_ahead(monkeypatch):
    """In every step but the first and the last of a text there are draft tokens when they are asked for."""
    model, _ = demo()
    DFlash().prepare(model)
    draft, taken = model.attachments[DFlash()], []
    propose = draft.draft_on_device

    def counted(wishes, anchors):
        ahead = draft._ahead
        taken.append((found := propose(wishes, anchors)) is ahead)
        return found

    monkeypatch.setattr(draft, "draft_on_device", counted)
    mixed(MIXTURES["two plain, two chains"], SAMPLINGS[0])
    assert sum(taken) > len(taken) - 5


def test_company_that_must_see_its_text(monkeypatch):
    """One with rules of its own waits for the host, and nothing is begun; all texts are right."""
    model, prompts = demo()
    penalised = Sampling(repetition_penalty=1.3)
    (alone,) = written(model, prompts[1:2], Plain(), penalised)
    sessions = [
        Session(prompts[0], strategy=CHAIN, max_tokens=N),
        Session(prompts[1], strategy=Plain(), sampling=penalised, max_tokens=len(alone.output_ids)),
    ]
    list(Engine(model).run(sessions))
    assert tokens(sessions) == [plain(SAMPLINGS[0])[0], alone.output_ids]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "T 1"])
def test_prompts_are_read_behind_sessions_that_decode(sampling, monkeypatch):
    """Chunks of later prompts are read while the tokens of earlier sessions are used: every text is as alone."""
    model, prompts = demo()
    long = [(prompt * 40)[: 150 + 30 * i] for i, prompt in enumerate(prompts)]
    alone = [written(model, [prompt], Plain(), sampling, n=24)[0].output_ids for prompt in long]
    behind, n_behind = model.forward_behind, []
    monkeypatch.setattr(
        model, "forward_behind", lambda spans, **settings: n_behind.append(len(spans)) or behind(spans, **settings)
    )
    for strategies in ((Plain(), Plain(), Plain(), Plain()), (CHAIN, Plain(), HEAD, TREE)):
        engine, n_behind[:] = Engine(model, chunk=64), []
        sessions = []
        for prompt, strategy in zip(long, strategies, strict=True):
            sessions.append(engine.add(Session(prompt, sampling=sampling, strategy=strategy, max_tokens=24)))
            for _ in range(3):
                engine.step()
        while engine.busy:
            engine.step()
        assert tokens(sessions) == alone
        assert len(n_behind) >= 3
