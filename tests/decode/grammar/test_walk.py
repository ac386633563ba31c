"""A grammar in every strategy: the same text, only legal draft tokens, and a state that follows the path."""

import itertools

import numpy as np
import pytest
from oracles import Oracle, Remembers, naive
from toy import Toy
from word_grammar import END, WordGrammar, masked, rule

from dflash.decode.drafters.prompt_lookup import PromptLookup
from dflash.decode.drafting.drafter import Plain, Strategy
from dflash.decode.engine import Engine
from dflash.decode.grammar import state
from dflash.decode.grammar.after import AfterToken
from dflash.decode.grammar.drafts import MASKS_SECONDS
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.model.batch import Forward

N = 40
PROMPT = [7, 7, 2, 11]
SAMPLINGS = [
    Sampling(),
    Sampling(repetition_penalty=1.5, frequency_penalty=0.3),
    Sampling(temperature=0.7, seed=1),
    Sampling(temperature=1.5, top_p=0.9, top_k=8, min_p=0.02, seed=2),
    Sampling(temperature=1.0, presence_penalty=0.6, logit_bias={4: 2.0, 0: -2}, seed=-3),
]
IDS = ["greedy", "greedy, penalties", "T 0.7", "T 1.5, top-p top-k min-p", "T 1, penalties, bias"]


def truth_of(toy, sampling, prompt=PROMPT, n=N):
    mask = masked(rule)
    seed = sampling.seed or 0
    return naive(toy, prompt, sampling, n, seed=seed, eos={END}, mask=lambda row, text: mask(row, text, len(prompt)))


def session(sampling, strategy, prompt=PROMPT, n=N, **settings):
    return Session(prompt, sampling=sampling, max_tokens=n, strategy=strategy, eos={END}, grammar=WordGrammar(), **settings)


def all_of(engine, sessions):
    list(engine.run(sessions))
    assert [one.error for one in sessions] == [None] * len(sessions)
    return [one.output_ids for one in sessions]


class DeviceRows:
    """Logits that are no array, as on a GPU: rows come one at a time, are counted, and a slice keeps them there."""

    def __init__(self, rows, copied):
        self.rows, self.shape, self.copied = rows, rows.shape, copied

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, which):
        if isinstance(which, slice):
            return DeviceRows(self.rows[which], self.copied)
        self.copied.append(which)
        return self.rows[which]

    def sample_rows(self, requests):
        from dflash.kernels.sample.params import HostSampleResult

        return HostSampleResult(self.rows, requests)


class DeviceToy(Toy):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.copied = []

    def forward(self, spans, *, capture=()):
        out = super().forward(spans, capture=capture)
        return Forward(DeviceRows(out.logits, self.copied), out.hidden, out.captured, out.spans)


@pytest.mark.parametrize("kind", ["right", "wrong", "chain", "tree"])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=IDS)
def test_no_draft_changes_the_text(sampling, kind):
    toy = Toy(14)
    truth = truth_of(toy, sampling)
    assert all(token in rule(truth[:i]) for i, token in enumerate(truth))
    plain = session(sampling, Plain())
    assert all_of(Engine(toy), [plain]) == [truth]
    for size in (1, 5, 24):
        drafted = session(sampling, Strategy(Oracle(((*PROMPT, *truth),), kind, size=size)))
        assert all_of(Engine(toy, chunk=2), [drafted]) == [truth]
        if kind == "right":
            assert drafted.n_accepted == drafted.n_drafted > 0
    assert toy.leaked == (0, 0, 0)


def test_a_tree_advances_the_state_between_its_nodes():
    """Siblings continue differently: with one state for the whole step, deep nodes would be masked as the root is."""
    toy = Toy(14)
    for sampling in SAMPLINGS:
        truth = truth_of(toy, sampling)
        tree = session(sampling, Strategy(Remembers((*PROMPT, *truth), 12)))
        assert all_of(Engine(toy), [tree]) == [truth]
        deepest = max(len(step.tokens) for step in tree.steps)
        assert deepest > 3
        matcher = tree.grammar._matcher
        paths = {path for path in matcher.masked if len(path) > 1}
        assert {tuple(truth[:i]) for i in range(2, len(truth))} <= paths


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=IDS)
def test_on_a_device_the_masks_of_all_nodes_are_part_of_the_request(sampling):
    """Also with penalties and bias: no row is copied to the host."""
    truth = truth_of(Toy(14), sampling)
    strategies = [Plain(), Strategy(Oracle(((*PROMPT, *truth),), "tree")), Strategy(Remembers((*PROMPT, *truth), 12))]
    for strategy in strategies:
        toy, one = DeviceToy(14), session(sampling, strategy)
        assert all_of(Engine(toy), [one]) == [truth]
        drafts = [step.draft for step in one.steps if step.tokens]
        assert len(one.grammar._matcher.masked) == sum(1 + len(draft) for draft in drafts)
        assert not toy.copied


@pytest.mark.parametrize("toy", [Toy(14), DeviceToy(14)], ids=["host", "device"])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=IDS)
def test_a_step_ends_where_its_masks_have_taken_too_long(sampling, toy, monkeypatch):
    """The text is that of plain decoding, though each step has few of the draft tokens."""
    ticks = itertools.count()
    monkeypatch.setattr(state, "thread_time", lambda: 0.005 * next(ticks))  # each mask takes 5 ms
    truth = truth_of(Toy(14), sampling)
    for strategy in (Oracle(((*PROMPT, *truth),), "right", size=24), Remembers((*PROMPT, *truth), 12)):
        one = session(sampling, Strategy(strategy))
        assert all_of(Engine(toy), [one]) == [truth]
        assert max(len(step.draft) for step in one.steps) >= 7
        assert max(len(step.tokens) for step in one.steps) <= 1 + MASKS_SECONDS / 0.005
        most = 1 + MASKS_SECONDS / 0.005
        n_steps = sum(bool(step.tokens) for step in one.steps)
        assert len(one.grammar._matcher.masked) <= most * n_steps
        assert n_steps < N / 2


def test_on_a_device_processors_read_rows_that_are_masked_during_the_forward():
    def nothing(logits, history):
        return logits

    sampling, toy = SAMPLINGS[2], DeviceToy(14)
    truth = truth_of(Toy(14), sampling)
    one = session(sampling, Strategy(Oracle(((*PROMPT, *truth),), "tree")), processors=(nothing,))
    assert all_of(Engine(toy), [one]) == [truth]
    assert len(toy.copied) == N
    drafts = [step.draft for step in one.steps if step.tokens]
    assert len(one.grammar._matcher.masked) == sum(1 + len(draft) for draft in drafts)


def test_on_a_device_free_rows_have_no_mask():
    """A grammar after a token: rows before it are sampled as they are, in the same requests as those after it."""
    sampling = Sampling(temperature=1.0, seed=1)
    free = Session(PROMPT, sampling=sampling, max_tokens=8)
    all_of(Engine(Toy(14)), [free])
    starts = free.output_ids[6]
    begins = free.output_ids.index(starts) + 1
    one = Session(PROMPT, sampling=sampling, max_tokens=begins + 12, grammar=AfterToken(WordGrammar(), starts))
    toy = DeviceToy(14)
    (found,) = all_of(Engine(toy), [one])
    assert found[:begins] == free.output_ids[:begins]
    assert all(found[i] in rule(found[begins:i]) for i in range(begins, begins + 12))
    assert not toy.copied


def test_a_mask_of_another_vocabulary_ends_its_own_session_alone():
    sampling = Sampling(temperature=1.0, seed=5)
    bad = Session(PROMPT, max_tokens=N, eos={END}, grammar=WordGrammar(n_vocab=64))
    good = session(sampling, Plain())
    list(Engine(DeviceToy(14)).run([bad, good]))
    assert str(bad.error) == "words: a mask of 14 tokens has 1 words, got 2"
    assert (good.error, good.output_ids) == (None, truth_of(Toy(14), sampling))


def test_illegal_draft_tokens_never_reach_the_model():
    toy, sampling = Toy(14), Sampling(temperature=1.0, seed=5)
    truth = truth_of(toy, sampling)
    seen = []

    def look(spans):
        for span in spans:
            if span.prefill:
                continue
            path = {-1: [], 0: one.output_ids}
            for i, (token, parent) in enumerate(zip(span.tokens.tolist(), span.parents.tolist(), strict=True)):
                if i:
                    path[i] = [*path[parent], token]
                    seen.append(token in rule(path[parent]))

    toy.before_forward = look
    one = session(sampling, Strategy(Oracle(((*PROMPT, *truth),), "tree", size=30, p=0.6)))
    assert all_of(Engine(toy), [one]) == [truth]
    assert len(seen) > 20
    assert all(seen)


def test_forced_tokens_are_drafts():
    """A break forces two tokens: one step makes them, with a third."""
    toy, sampling = Toy(14), Sampling(temperature=1.0, seed=2)
    one = session(sampling, Plain(), n=60)
    (tokens,) = all_of(Engine(toy), [one])
    assert tokens == truth_of(toy, sampling, n=60)
    starts = [step for step in one.steps if step.tokens and step.tokens[0] == 3]
    assert len(starts) >= 2
    assert one.n_accepted == one.n_drafted >= 2 * len(starts) - 1
    assert len([step for step in one.steps if step.tokens]) == len(tokens) - one.n_accepted


def test_different_sessions_in_one_batch():
    toy = Toy(14)
    truths = [truth_of(toy, sampling, [*PROMPT, i]) for i, sampling in enumerate(SAMPLINGS)]
    free = Session(PROMPT, sampling=SAMPLINGS[2], max_tokens=N)
    alone = Session(PROMPT, sampling=SAMPLINGS[2], max_tokens=N)
    all_of(Engine(toy), [alone])
    strategies = [Plain(), Strategy(PromptLookup()), *(Strategy(Oracle((), "tree")) for _ in range(3))]
    sessions = [
        session(sampling, strategy, [*PROMPT, i])
        for i, (sampling, strategy) in enumerate(zip(SAMPLINGS, strategies, strict=True))
    ]
    assert all_of(Engine(toy), [*sessions, free]) == [*truths, alone.output_ids]


def test_the_end_is_legal_where_the_grammar_accepts_and_certain_where_nothing_else_is():
    def short(path):
        return [{5}, {6, END}, {END}][len(path)]

    toy = Toy(14)
    ended = []
    for seed in range(12):
        one = Session(
            PROMPT, sampling=Sampling(temperature=1.0, seed=seed), max_tokens=N, eos={END}, grammar=WordGrammar(short)
        )
        (tokens,) = all_of(Engine(toy), [one])
        assert one.finish_reason == "stop"
        ended.append(tuple(tokens))
    assert set(ended) == {(5, END), (5, 6, END)}


def test_a_mask_without_a_token_ends_the_session_with_an_error():
    one = Session(PROMPT, max_tokens=N, eos={END}, grammar=WordGrammar(lambda path: {5, 6} if len(path) < 3 else set()))
    other = session(Sampling(), Plain())
    list(Engine(Toy(14)).run([one, other]))
    assert (one.finish_reason, len(one.output_ids)) == ("error", 3)
    assert "no token can follow" in str(one.error)
    assert other.error is None


@pytest.mark.parametrize("toy", [Toy, DeviceToy])
@pytest.mark.parametrize("kind", ["right", "tree"])
def test_a_grammar_that_fails_ends_its_own_session_alone(toy, kind):
    toy, sampling = toy(14), Sampling(temperature=1.0, seed=5)
    truth = truth_of(Toy(14), sampling)
    strategy = Strategy(Oracle(((*PROMPT, *truth),), kind))
    bad = Session(PROMPT, sampling=sampling, strategy=strategy, max_tokens=N, eos={END}, grammar=WordGrammar(fails_at=9))
    good = session(sampling, strategy)
    list(Engine(toy).run([bad, good]))
    assert bad.finish_reason == "error"
    assert "can't be followed further" in str(bad.error)
    assert bad.output_ids == truth[: len(bad.output_ids)]
    assert good.output_ids == truth
    assert toy.leaked == (0, 0, 0)


def test_a_processor_that_unmasks_tokens_is_found_out():
    """The token is refused before anybody sees it, never taken in silently."""

    def stubborn(logits, history):
        logits[9] = 99 if history.n_produced == 6 else logits[9]
        return logits

    shown = []
    one = session(Sampling(), Plain(), processors=(stubborn,), observer=lambda _, tokens: shown.extend(tokens))
    list(Engine(Toy(14)).run([one]))
    expected = truth_of(Toy(14), Sampling())[:6]
    assert 9 not in rule(expected)
    assert one.finish_reason == "error"
    assert str(one.error) == f"grammar: token 9 at position {len(PROMPT) + 6} is not legal after the output so far"
    assert shown == one.output_ids == expected


def test_masks_leave_the_logits_of_the_model_alone():
    """Log-probabilities are those of the model, as without a grammar."""
    toy = Toy(14)
    one = session(Sampling(logprobs=14), Plain(), n=5)
    all_of(Engine(toy), [one])
    for i, entry in enumerate(one.logprobs):
        row = toy.after(PROMPT + one.output_ids[:i]).astype(np.float64)
        assert len(entry.top) == 14
        assert entry.logprob == pytest.approx(row[entry.token] - np.log(np.exp(row).sum()), abs=1e-5)
