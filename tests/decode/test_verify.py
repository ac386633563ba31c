"""The walk down a draft."""

import numpy as np
import pytest
from oracles import naive
from toy import Toy

from dflash.decode.drafting.draft import EMPTY, Draft
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.decode.verify import verify
from dflash.errors import DFlashError

PROMPT = [3, 1, 4]
SAMPLED = Sampling(temperature=1.0, seed=6, repetition_penalty=1.4, frequency_penalty=0.4)


def logits_of(toy, text, draft):
    return np.stack([toy.after(text)] + [toy.after([*text, *draft.tokens[draft.path(i)]]) for i in range(len(draft))])


def session(toy, sampling=SAMPLED, *, limit=100, **arguments):
    made = Session(PROMPT, sampling=sampling, **arguments)
    made.max_length = limit
    return made


@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("right", [0, 1, 3, 5])
def test_a_chain_is_taken_as_far_as_it_is_right(sampling, right):
    toy = Toy()
    truth = naive(toy, PROMPT, sampling, 6, seed=6)
    draft = Draft([*truth[:right], *((token + 1) % 13 for token in truth[right:5])])
    kept = verify(draft, logits_of(toy, PROMPT, draft), session(toy, sampling))
    assert kept.tokens == truth[: right + 1]
    assert kept.rows == list(range(right + 1))
    assert (kept.n_accepted, kept.finish) == (right, None)


def test_a_tree_is_walked_by_its_right_branch():
    toy = Toy()
    a, b, c, d = naive(toy, PROMPT, SAMPLED, 4, seed=6)
    draft = Draft([(a + 1) % 13, a, b, (b + 1) % 13, b, c], [-1, -1, 0, 1, 1, 4])
    kept = verify(draft, logits_of(toy, PROMPT, draft), session(toy))
    assert kept.tokens == [a, b, c, d]
    assert kept.rows == [0, 2, 5, 6]
    assert kept.n_accepted == 3


@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED], ids=["greedy", "sampled"])
def test_an_end_token_inside_an_accepted_run(sampling):
    toy = Toy()
    truth = naive(toy, PROMPT, sampling, 5, seed=6)
    draft = Draft(truth[:4])
    end = next(i for i in (1, 2, 3) if truth[i] not in truth[:i])
    kept = verify(draft, logits_of(toy, PROMPT, draft), session(toy, sampling, eos=[truth[end]]))
    assert kept.tokens == truth[: end + 1]
    assert kept.rows == list(range(end + 1))
    assert (kept.n_accepted, kept.finish) == (end + 1, "stop")


def test_the_limit_inside_an_accepted_run():
    toy = Toy()
    truth = naive(toy, PROMPT, SAMPLED, 5, seed=6)
    draft = Draft(truth)
    kept = verify(draft, logits_of(toy, PROMPT, draft), session(toy, limit=len(PROMPT) + 2))
    assert (kept.tokens, kept.n_accepted, kept.finish) == (truth[:2], 2, "length")
    ends = verify(draft, logits_of(toy, PROMPT, draft), session(toy, limit=len(PROMPT) + 2, eos=[truth[1]]))
    assert ends.finish == "stop"


def test_processors_see_the_path_of_their_node():
    toy, seen = Toy(), []

    def no_repeats(logits, history):
        seen.append(list(history.token_ids))
        logits[history.token_ids[-1]] = -np.inf
        return logits

    def mask(logits, text):
        logits[text[-1]] = -np.inf
        return logits

    truth = naive(toy, PROMPT, SAMPLED, 4, seed=6, mask=mask)
    draft = Draft([*truth[:3], 0])
    asking = session(toy, processors=[no_repeats])
    assert verify(draft, logits_of(toy, PROMPT, draft), asking).tokens[:4] == truth
    assert seen[:4] == [PROMPT + truth[:i] for i in range(4)]


@pytest.mark.parametrize("fails", [False, True])
def test_the_session_is_left_as_it_was(fails):
    toy = Toy()
    truth = naive(toy, PROMPT, SAMPLED, 5, seed=6)
    draft = Draft(truth)

    def processor(logits, history):
        if fails and len(history) == 6:
            raise RuntimeError("out of ideas")
        return logits

    asking = session(toy, processors=[processor])
    if fails:
        with pytest.raises(RuntimeError):
            verify(draft, logits_of(toy, PROMPT, draft), asking)
    else:
        verify(draft, logits_of(toy, PROMPT, draft), asking)
    assert asking.token_ids == PROMPT
    assert asking.history.counts.ids.tolist() == PROMPT
    assert not asking.history.counts.produced.any()


@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED], ids=["greedy", "sampled"])
def test_a_row_with_nothing_to_pick(sampling):
    toy = Toy()
    with pytest.raises(DFlashError, match="position 3"):
        verify(EMPTY, np.full((1, 13), np.nan, np.float32), session(toy, sampling))


def test_log_probabilities_are_one_a_token():
    toy = Toy()
    wants = Sampling(temperature=1.0, seed=6, logprobs=2)
    truth = naive(toy, PROMPT, wants, 4, seed=6)
    draft = Draft(truth[:3])
    kept = verify(draft, logits_of(toy, PROMPT, draft), session(toy, wants))
    assert [entry.token for entry in kept.logprobs] == kept.tokens == truth
    for i, entry in enumerate(kept.logprobs):
        row = toy.after(PROMPT + truth[:i]).astype(np.float64)
        assert entry.logprob == pytest.approx(row[truth[i]] - np.log(np.exp(row).sum()), abs=1e-5)
