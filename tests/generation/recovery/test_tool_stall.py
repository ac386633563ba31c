"""An announcement without its action."""

from itertools import pairwise

import pytest
from toy import Toy
from watching import WAYS, script, way, written

from dflash.decode.sampling.params import Sampling
from dflash.decode.special_tokens import SpecialTokens
from dflash.errors import RequestError
from dflash.generation.recovery.tool_stall import ToolStall

PROMPT = [12, 8, 7, 4]
END, BLANK, COLON, DONE, I, WILL, OPEN, CLOSE, NAME, THINK, THOUGHT, LEAD, WORD = range(13)


def announces(ids):
    assert len(ids) <= 6
    return DONE not in ids and (I, WILL) in pairwise(ids)


STALL = ToolStall((OPEN, NAME), ((COLON,),), announces, lead_ids=(LEAD,), tail=6)
MARKS = SpecialTokens(silent=frozenset([BLANK]), call=(OPEN, CLOSE), think=(THINK, THOUGHT))
ANNOUNCED = [WORD, I, WILL, WORD, COLON]


def agent(said, prompt=PROMPT):
    """Says `said` and ends; a call that was opened is closed after a word."""

    def law(text):
        new = text[len(prompt) :]
        logits = [0.0] * 13
        follows = {NAME: WORD, WORD: CLOSE, CLOSE: END, OPEN: NAME, LEAD: OPEN}
        called = OPEN in new[len(said) :] and new[: len(said)] == said
        logits[follows[new[-1]] if called else said[len(new)] if len(new) < len(said) else END] = 9
        return logits

    return Toy(law=law)


def ended(kind, said, recovery=STALL, prompt=PROMPT, **settings):
    strategy = way(kind, [*prompt, *said, END, END, END])
    settings = {"eos": [END], "special_tokens": MARKS} | settings
    return written(agent(said, prompt), prompt, strategy | recovery if recovery else strategy, detokenize=list, **settings)


@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize("size", [1, 3, 5])
def test_a_call_is_opened(kind, size):
    assert ended(kind, ANNOUNCED, None).output_ids == [*ANNOUNCED, END]
    session = ended(kind, ANNOUNCED)
    assert session.output_ids == [*ANNOUNCED, LEAD, OPEN, NAME, WORD, CLOSE, END]
    (done,) = session.interventions
    assert (done.recovery, done.action, done.step) == ("ToolStall", "inject", session.steps.index(noted(session)))
    (forced,) = [step for step in session.steps if step.injected]
    assert forced.tokens == [LEAD, OPEN, NAME, WORD]
    assert (forced.injected, forced.drafted, forced.accepted, len(forced.draft)) == (3, 0, 0, 0)
    assert not any(step.drafted for step in session.steps[done.step + 1 :])
    assert session.stop_token == END


def noted(session):
    return next(step for step in session.steps if step.note)


@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize(
    "said",
    [
        [WORD],
        [],
        [WORD, COLON],
        [I, WILL, WORD, DONE, COLON],
        [I, WILL, WORD, DONE],
        [*ANNOUNCED, OPEN, NAME, CLOSE, COLON],
        [I, WILL, *[WORD] * 6, COLON],
        [THINK, *ANNOUNCED],
    ],
    ids=["no colon", "nothing", "no begin", "done", "done without a colon", "called before", "long ago", "while it thinks"],
)
def test_anything_else_is_left_alone(kind, said):
    session = ended(kind, said)
    assert (session.output_ids, session.interventions) == ([*said, END], [])


def test_the_prompt_does_not_count():
    assert ended("plain", [WORD, COLON], prompt=[WORD, I, WILL, WORD]).interventions == []
    assert ended("plain", ANNOUNCED, prompt=[DONE, OPEN, DONE, DONE]).interventions != []
    assert ended("plain", ANNOUNCED, prompt=[WORD, WORD, THINK, BLANK]).interventions == []
    assert ended("plain", [WORD, THOUGHT, *ANNOUNCED], prompt=[WORD, WORD, THINK, BLANK]).interventions != []


@pytest.mark.parametrize("kind", WAYS)
def test_done_long_ago_is_no_reason(kind):
    said = [DONE, WORD, WORD, *ANNOUNCED]
    assert len(ended(kind, said).interventions) == 1


def test_unless_asked_every_colon_is_an_announcement():
    assert len(ended("plain", [WORD, COLON], ToolStall((OPEN, NAME), ((COLON,),))).interventions) == 1


@pytest.mark.parametrize("kind", WAYS)
def test_white_space_after_the_colon_separates(kind):
    session = ended(kind, [*ANNOUNCED, BLANK])
    assert session.output_ids == [*ANNOUNCED, BLANK, OPEN, NAME, WORD, CLOSE, END]


@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize("most", [5, 6, 7, 8, 9])
def test_the_limit_holds_for_what_is_put_in(kind, most):
    session = ended(kind, ANNOUNCED, max_tokens=most)
    assert session.output_ids == [*ANNOUNCED, LEAD, OPEN, NAME, WORD][:most]
    assert session.finish_reason == "length"


def test_log_probabilities_are_the_models_own():
    session = ended("tree", ANNOUNCED, sampling=Sampling(logprobs=2))
    assert [entry.token for entry in session.logprobs] == session.output_ids
    forced = session.logprobs[session.output_ids.index(LEAD)]
    assert forced.top[0][0] == END
    assert forced.logprob < forced.top[0][1]


@pytest.mark.parametrize("arguments", [((), ((COLON,),)), ((OPEN,), ()), ((OPEN,), ((),))])
def test_what_is_no_stall(arguments):
    with pytest.raises(RequestError, match="must hold"):
        ToolStall(*arguments)


def test_ids_of_another_vocabulary_end_this_session_alone():
    with pytest.raises(Exception, match="ids are 0 to 12, got \\[11, 99\\]"):
        ended("plain", ANNOUNCED, ToolStall((99,), ((COLON,),), lead_ids=(LEAD,)))


@pytest.mark.parametrize("kind", WAYS)
def test_a_completion_with_a_call_is_left_alone(kind):
    said = [OPEN, NAME, CLOSE, *ANNOUNCED]
    session = ended(kind, said)
    assert (session.output_ids, session.interventions) == ([*said, END], [])


@pytest.mark.parametrize("kind", WAYS)
def test_a_stall_is_recovered_only_once(kind):
    """Also where no token marks a call and the model goes on to announce."""
    said = [*ANNOUNCED, NAME, NAME, *ANNOUNCED]
    strategy = way(kind, [*PROMPT, *said]) | ToolStall((NAME, NAME), ((COLON,),))
    toy = Toy(law=script(len(PROMPT), [*ANNOUNCED, END, NAME, *ANNOUNCED]))
    session = written(toy, PROMPT, strategy, eos=[END], detokenize=list)
    assert session.output_ids == [*said, END]
    assert len(session.interventions) == 1


@pytest.mark.parametrize("kind", WAYS)
def test_an_opening_longer_than_a_step(kind):
    opening = (OPEN, *[NAME, WORD] * 50)
    toy = Toy(law=lambda text: [9 * (token == (COLON if len(text) == len(PROMPT) else END)) for token in range(13)])
    strategy = way(kind, [*PROMPT, COLON, END]) | ToolStall(opening, ((COLON,),))
    session = written(toy, PROMPT, strategy, max_tokens=200, eos=[END], special_tokens=MARKS, detokenize=list)
    assert session.output_ids == [COLON, *opening, END]
    assert sum(step.injected for step in session.steps) == len(opening)
