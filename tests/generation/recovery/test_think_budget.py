"""Reasoning that is too long is closed at the end of a word, on every path at the same token."""

import pytest
from toy import Toy, finish
from watching import WAYS, script, way, written
from word_grammar import WordGrammar

from dflash.decode.engine import Engine
from dflash.decode.grammar.after import AfterToken
from dflash.decode.recoveries.empty_retry import EmptyRetry
from dflash.decode.recoveries.loop_guard import LoopGuard
from dflash.decode.recoveries.min_tokens import MinTokens
from dflash.decode.recoveries.think_leak import ThinkLeak
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.decode.special_tokens import SpecialTokens
from dflash.errors import RequestError
from dflash.generation.recovery.think_budget import MAX_CLOSES, PATIENCE, ThinkBudget

PROMPT = [12, 8, 7, 4]
END, THINK, THOUGHT, LINE, WORD, REST, DOT, SORRY, CALL, CALLED, HALF = range(11)
TEXTS = {LINE: "\n\n", WORD: " wo", REST: "rd", DOT: ".", SORRY: " enough", HALF: "\ufffd", THINK: "<think>"}
MARKS = SpecialTokens(silent=frozenset([LINE, THINK, THOUGHT]), call=(CALL, CALLED), think=(THINK, THOUGHT))
CLOSE = (SORRY, THOUGHT, LINE)


def detokenize(ids):
    return "".join(TEXTS.get(token, " other") for token in ids)


def model(reasoning, answer, *, prompt=PROMPT):
    """Writes `reasoning`, and `answer` after the close, written or injected."""

    def law(text):
        new = text[len(prompt) :]
        place, said = (new.index(THOUGHT), answer) if THOUGHT in new else (-1, reasoning)
        at = len(new) - place - 1
        logits = [0.0] * 13
        logits[END] = 3
        logits[said[at] if at < len(said) else END] = 9
        return logits

    return Toy(law=law)


def ended(kind, toy, text, recoveries, *, prompt=PROMPT, **settings):
    strategy = way(kind, [*prompt, *text])
    for recovery in recoveries:
        strategy |= recovery
    settings = {"eos": [END], "special_tokens": MARKS, "detokenize": detokenize, "max_tokens": 90} | settings
    return written(toy, prompt, strategy, **settings)


@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize("opened", [False, True], ids=["the model opens", "the prompt opens"])
@pytest.mark.parametrize(("n", "n_kept"), [(0, 0), (1, 2), (2, 2), (3, 4), (4, 4), (5, 5), (6, 7)])
def test_it_is_closed_at_the_end_of_a_word(kind, opened, n, n_kept):
    reasoning = [WORD, REST, WORD, REST, DOT, WORD, REST] * 3
    prompt = [*PROMPT, THINK] if opened else PROMPT
    before = [] if opened else [THINK]
    toy = model([*before, *reasoning], [LINE, DOT, WORD], prompt=prompt)
    plain = [*before, *reasoning, THOUGHT, LINE, DOT, WORD, END]
    session = ended(kind, toy, plain, [ThinkBudget(n, ids=CLOSE)], prompt=prompt)
    assert session.output_ids == [*before, *reasoning[:n_kept], *CLOSE, DOT, WORD, END]
    assert session.finish_reason == "stop"
    (done,) = session.interventions
    assert (done.recovery, done.action, done.reason) == (
        "ThinkBudget",
        "inject",
        f"reasoning was closed after {n_kept} tokens",
    )
    assert sum(step.injected for step in session.steps) == len(CLOSE)


@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize("rest", [REST, HALF])
def test_a_word_without_an_end_is_waited_for_a_bounded_time(kind, rest):
    reasoning = [WORD, *[rest] * 60]
    toy = model([THINK, *reasoning], [LINE, DOT])
    session = ended(kind, toy, [THINK, *reasoning, THOUGHT], [ThinkBudget(3, ids=CLOSE)])
    assert session.output_ids == [THINK, *reasoning[: 3 + PATIENCE], *CLOSE, DOT, END]


@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize("n", [3, 4, 50])
def test_reasoning_that_closes_itself_is_left_alone(kind, n):
    """An answer of one token, and none, stay what they are."""
    for answer in ([DOT], []):
        text = [THINK, WORD, REST, DOT, THOUGHT, *answer, END]
        toy = Toy(law=script(len(PROMPT), text))
        session = ended(kind, toy, text, [ThinkBudget(n, ids=CLOSE)])
        assert (session.output_ids, session.interventions) == (text, [])
        assert not session.sampler.processors


@pytest.mark.parametrize("kind", WAYS)
def test_an_end_that_needs_no_close_is_left_alone(kind):
    text = [THINK, WORD, DOT, END]
    session = ended(kind, Toy(law=script(len(PROMPT), text)), text, [ThinkBudget(2, ids=CLOSE)])
    assert (session.output_ids, session.interventions) == (text, [])


@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.3, seed=5), Sampling(repetition_penalty=1.1)])
def test_no_end_right_after_an_injected_close(kind, sampling):
    """The model wants to end at once; one token later it may."""

    def law(text):
        new = text[len(PROMPT) :]
        logits = [0.0] * 13
        if THOUGHT in new:
            logits[END], logits[DOT] = 30, 15
        else:
            logits[WORD if new else THINK] = 30
        return logits

    toy = Toy(law=law)
    session = ended(kind, toy, [THINK, *[WORD] * 9], [ThinkBudget(4, ids=CLOSE)], sampling=sampling)
    assert session.output_ids == [THINK, *[WORD] * 4, *CLOSE, DOT, END]
    assert [each.action for each in session.interventions] == ["inject", "mask"]
    assert len(session.sampler.processors) == len(sampling.before)


@pytest.mark.parametrize("kind", WAYS)
def test_reasoning_that_opens_again_is_closed_a_bounded_number_of_times(kind):
    def law(text):
        new = text[len(PROMPT) :]
        wanted = WORD if new and new[-1] in (WORD, THINK) else THINK
        return [9.0 * (token == wanted) for token in range(13)]

    session = ended(kind, Toy(law=law), [THINK, *[WORD] * 9], [ThinkBudget(3, ids=CLOSE)], max_tokens=60)
    again = [THINK, *CLOSE] * (MAX_CLOSES - 1)
    text = [THINK, WORD, WORD, WORD, *CLOSE, *again, THINK]
    assert session.output_ids == text + [WORD] * (60 - len(text))
    assert len(session.interventions) == MAX_CLOSES


@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize("most", range(4, 9))
def test_the_limit_holds_for_what_is_injected(kind, most):
    toy = model([THINK, *[WORD] * 20], [LINE, DOT, WORD])
    session = ended(kind, toy, [THINK, *[WORD] * 20], [ThinkBudget(3, ids=CLOSE)], max_tokens=most)
    assert session.output_ids == [THINK, WORD, WORD, WORD, *CLOSE, DOT, WORD][:most]
    assert session.finish_reason == "length"


@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize("n_close", [63, 64, 65, 130])
def test_a_close_longer_than_a_step(kind, n_close):
    """The position after the close comes with the last injected token, or in a step of its own."""
    ids = (*[SORRY] * (n_close - 1), THOUGHT)
    toy = Toy(law=lambda text: [9.0 * (t == (END if THOUGHT in text else WORD)) + 5.0 * (t == DOT) for t in range(13)])
    session = ended(kind, toy, [WORD] * 9, [ThinkBudget(2, ids=ids)], prompt=[*PROMPT, THINK], max_tokens=200, eos=[END])
    assert session.output_ids == [WORD, WORD, *ids, DOT, END]
    assert not session.sampler.processors


@pytest.mark.parametrize("kind", WAYS)
def test_with_others_in_any_order(kind):
    others = [EmptyRetry(), MinTokens(14), LoopGuard(same=4, max_period=0), ThinkLeak()]
    toy = model([THINK, WORD, DOT, WORD, WORD, CALL, *[WORD] * 9], [LINE, DOT, *[WORD] * 9])
    truth = [THINK, WORD, DOT, WORD, *CLOSE, DOT, WORD, WORD, WORD, WORD]
    for i in range(len(others) + 1):
        recoveries = [*others[:i], ThinkBudget(3, ids=CLOSE), *others[i:]]
        session = ended(kind, toy, [*truth, END], recoveries)
        assert session.output_ids == truth
        assert session.finish_reason == "length"
        assert [each.recovery for each in session.interventions] == ["ThinkBudget", "LoopGuard"]


def test_in_a_batch_each_keeps_its_own():
    toy = model([THINK, *[WORD, REST] * 20], [LINE, DOT, WORD])
    engine, sessions = Engine(toy), []
    for n in range(12):
        strategy = way(WAYS[n % 3], [*PROMPT, THINK, *[WORD, REST] * 20]) | ThinkBudget(n, ids=CLOSE)
        settings = {"eos": [END], "special_tokens": MARKS, "detokenize": detokenize, "max_tokens": 60}
        sessions.append(engine.add(Session(PROMPT, strategy=strategy, **settings)))
    finish(engine)
    for n, session in enumerate(sessions):
        n_kept = n + n % 2
        assert session.output_ids == [THINK, *([WORD, REST] * 20)[:n_kept], *CLOSE, DOT, WORD, END]
    assert toy.leaked == (0, 0, 0)


@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize("lead", [(), (LINE,)], ids=["no line", "a line"])
def test_a_grammar_after_reasoning(kind, lead):
    """The close is injected without the empty line where a grammar refuses that."""
    body = WordGrammar(lambda path: [*({t} for t in (*lead, DOT, WORD)), {END}, set()][len(path)], n_vocab=13)
    toy = model([THINK, *[WORD] * 20], [WORD] * 9)
    session = ended(kind, toy, [THINK, *[WORD] * 20], [ThinkBudget(3, ids=CLOSE)], grammar=AfterToken(body, THOUGHT))
    assert session.output_ids == [THINK, WORD, WORD, WORD, SORRY, THOUGHT, *lead, DOT, WORD, END]
    assert [each.action for each in session.interventions] == ["inject"]


@pytest.mark.parametrize("kind", WAYS)
def test_a_grammar_that_knows_no_close(kind):
    body = WordGrammar(lambda path: {END} if len(path) > 20 else {THINK, WORD}, n_vocab=13)
    toy = model([THINK, *[WORD] * 20], [])
    session = ended(kind, toy, [THINK, *[WORD] * 20], [ThinkBudget(3, ids=CLOSE)], grammar=body)
    assert session.output_ids == [THINK, *[WORD] * 20, END]
    assert [each.action for each in session.interventions] == ["skip"] * MAX_CLOSES
    assert not session.sampler.processors


def test_what_is_no_budget():
    with pytest.raises(RequestError, match="thinking_token_budget: must be 0 or more, got -1"):
        ThinkBudget(-1)
    toy = Toy(law=script(len(PROMPT), [WORD]))
    with pytest.raises(RequestError, match="ThinkBudget: has no token ids"):
        ended("plain", toy, [], [ThinkBudget(3)])
    session = ended("plain", toy, [], [ThinkBudget(0, ids=CLOSE)], special_tokens=SpecialTokens())
    assert (session.output_ids, session.recovery_states) == ([WORD, END], [])
