"""A text that ends before anything is to be seen: it is written once more, and can't end before a visible token."""

import numpy as np
import pytest
from oracles import Remembers, naive
from toy import Toy, finish
from watching import WAYS, script, way, written

from dflash.decode.drafting.drafter import Strategy
from dflash.decode.engine import Engine
from dflash.decode.recoveries.empty_retry import EmptyRetry
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.decode.special_tokens import SpecialTokens
from dflash.errors import PoolExhausted
from dflash.model.loading.settings import LoadSettings
from dflash.model.loading.target import load_model

END, BLANK, WORD, CONTROL, PROMPT = 0, 1, 6, 7, [3, 8, 5, 2]
KNOWN = {"eos": [END], "special_tokens": SpecialTokens(silent=frozenset([BLANK]))}


class Wavering(Toy):
    """Whenever it reads draft tokens it wants to write `wrong`, and then the end."""

    def __init__(self, wrong=(), **arguments):
        super().__init__(**arguments)
        self.wrong, self.before_forward = [*wrong, END], self.look

    def look(self, spans):
        self.drafted = any(not span.prefill and len(span.tokens) > 1 for span in spans)

    def expect(self, memory, text):
        logits = super().expect(memory, text)
        logits[END] = -9
        place = len(text) - len(PROMPT)
        if self.drafted and 0 <= place < len(self.wrong):
            logits[self.wrong[place]] = 9
        return logits


@pytest.fixture(scope="module")
def truth():
    toy = Wavering()
    toy.drafted = False
    truth = naive(toy, PROMPT, Sampling(), 40)
    assert truth[0] not in (END, BLANK)
    return truth


@pytest.mark.parametrize("kind", ["right", "chain", "tree"])
@pytest.mark.parametrize("n_blank", [0, 1, 4])
def test_it_is_written_once_more(kind, n_blank, truth):
    wrong = [BLANK] * n_blank
    strategy = way(kind, [*PROMPT, *wrong, END], size=3)
    assert written(Wavering(wrong), PROMPT, strategy, **KNOWN).output_ids == [*wrong, END]

    session = written(Wavering(wrong), PROMPT, strategy | EmptyRetry(), **KNOWN)
    assert session.output_ids == truth
    (done,) = session.interventions
    assert (done.recovery, done.action) == ("EmptyRetry", "restart")
    assert session.steps[done.step].note == str(done)
    in_vain = [step for step in session.steps[: done.step + 1] if not step.prefilled]
    assert all(step.drafted and not step.tokens and not step.accepted and step.forward for step in in_vain)
    assert not any(step.drafted for step in session.steps[done.step + 1 :])
    assert sum(step.prefilled for step in session.steps) == len(PROMPT) - 1


def test_without_memory_to_remember_the_prompt_is_read_again(truth):
    toy = Wavering()

    class Full(toy.state().__class__):
        def snapshot(self):
            raise PoolExhausted("no page")

    toy = Wavering()
    toy.state = lambda: Full(toy.pools)
    session = written(toy, PROMPT, way("right", [*PROMPT, END]) | EmptyRetry(), **KNOWN)
    assert session.output_ids == truth
    assert sum(step.prefilled for step in session.steps) == 2 * (len(PROMPT) - 1)


def test_a_prompt_of_one_token():
    toy = Wavering()
    session = Session([5], strategy=way("right", [5, END]) | EmptyRetry(), max_tokens=3, eos=[END])
    toy.expect = lambda memory, text: [9, 0, 0] + [toy.drafted * -99 + 20] + [0] * 9
    list(Engine(toy).stream(session))
    assert session.output_ids == [3, 3, 3]


@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize("n_blank", [0, 2])
def test_an_end_that_the_model_itself_wants_is_masked_up_to_a_visible_token(kind, n_blank):
    """Likeliest is the end, then a control token, then blanks and at last a word."""

    def law(text):
        logits = dict.fromkeys(range(13), 0.0) | {wanted[min(len(text) - len(PROMPT), 3)]: 7.0, CONTROL: 8.0, END: 9.0}
        return list(logits.values())

    wanted = [*[BLANK] * n_blank, *[WORD] * 4]
    known = {**KNOWN, "special_tokens": SpecialTokens(silent=frozenset([BLANK, CONTROL]), control=frozenset([CONTROL]))}
    assert written(Toy(law=law), PROMPT, way(kind, [*PROMPT, END]), **known).output_ids == [END]
    session = written(Toy(law=law), PROMPT, way(kind, [*PROMPT, END]) | EmptyRetry(), **known)
    assert session.output_ids == [*wanted[: n_blank + 1], END]
    assert [each.action for each in session.interventions] == ["restart"]
    assert (session.sampler.processors, len(session.recovery_states)) == ((), 0)


def test_a_token_of_the_caller_that_ends_an_output_is_no_fault():
    toy = Toy(law=script(4, [BLANK, WORD]))
    session = written(toy, PROMPT, way("plain", ()) | EmptyRetry(), stop_ids=[BLANK], **KNOWN)
    assert (session.output_ids, session.interventions) == ([BLANK], [])


def test_an_empty_output_is_retried_only_once():
    toy = Toy(law=lambda text: [9] + [0] * 12)
    session = written(toy, PROMPT, way("right", [*PROMPT, 0]) | EmptyRetry() | EmptyRetry(), eos=[0])
    assert session.output_ids == [1, 0], "the first visible token, and then the end that is likeliest"
    assert len(session.interventions) == 1


@pytest.mark.parametrize("end", ["max_tokens", "patience"])
def test_another_end_is_not_tried_again(end):
    toy = Toy(law=lambda text: [0, 9] + [0] * 11)
    most, recovery = (4, EmptyRetry()) if end == "max_tokens" else (20, EmptyRetry(patience=6))
    session = written(toy, PROMPT, way("right", [*PROMPT, *[1] * 9]) | recovery, max_tokens=most, **KNOWN)
    assert (session.output_ids, session.finish_reason, session.interventions) == ([1] * most, "length", [])


@pytest.mark.parametrize("kind", ["chain", "tree"])
def test_what_begins_unseen_is_handed_on_whole_with_the_first_token_that_is(kind):
    text = [BLANK] * 5 + [7, 4, BLANK, END]
    toy = Toy(law=script(4, text))
    strategy = way(kind, [*PROMPT, *text], size=1)
    bare = written(toy, PROMPT, strategy, **KNOWN)
    session = Session(PROMPT, strategy=strategy | EmptyRetry(), **KNOWN)
    engine = Engine(toy)
    engine.add(session)
    while not session.output_ids[5:6]:
        assert not session.has_emitted
        assert not any(event.step.tokens for event in engine.step() if len(session.output_ids) < 6)
    assert session.has_emitted
    finish(engine)
    assert [(step.tokens, step.accepted) for step in session.steps] == [(step.tokens, step.accepted) for step in bare.steps]
    assert session.output_ids == text
    assert toy.leaked == (0, 0, 0)


def test_an_observer_may_stop_inside_what_was_held_back():
    text = [BLANK] * 5 + [7, 4, END]
    toy, seen = Toy(law=script(4, text)), []

    def stop(_, tokens):
        seen.extend(tokens)
        return None if len(seen) < 3 else len(tokens) - (len(seen) - 3)

    session = Session(
        PROMPT,
        strategy=way("chain", [*PROMPT, *text], size=1) | EmptyRetry(),
        observer=stop,
        **KNOWN,
        sampling=Sampling(logprobs=0),
    )
    list(Engine(toy).stream(session))
    assert (session.output_ids, session.finish_reason) == ([BLANK] * 3, "stop")
    assert [token for step in session.steps for token in step.tokens] == session.output_ids
    assert [entry.token for entry in session.logprobs] == session.output_ids
    assert toy.leaked == (0, 0, 0)


def test_cancelled_while_it_is_held_back():
    toy = Toy(law=lambda text: [0, 9] + [0] * 11)
    engine = Engine(toy)
    session = engine.add(Session(PROMPT, strategy=way("right", [*PROMPT, *[1] * 30], size=2) | EmptyRetry(), **KNOWN))
    for _ in range(4):
        engine.step()
    assert session.held_steps
    session.cancel()
    engine.step()
    assert session.finish_reason == "cancelled"
    assert [token for step in session.steps for token in step.tokens] == session.output_ids == [1] * session.n_tokens
    assert toy.leaked == (0, 0, 0)


@pytest.mark.parametrize(("n_prompt", "read"), [(257, 256), (300, 299), (800, 2 * 799)])
def test_where_every_page_is_taken(n_prompt, read):
    """A place inside a page needs a page of its own to be remembered; where there is none, the prompt is read again."""
    model = load_model("demo", LoadSettings(device="cpu", threads=1, context=1024, sequences=1)).model
    prompt = np.random.default_rng(1).integers(0, 16000, n_prompt).tolist()
    engine = Engine(model)
    plain = engine.add(Session(prompt, max_tokens=6))
    finish(engine)

    class Blind(EmptyRetry):
        """Sees nothing at all."""

        def start(self, session):
            watch = super().start(session)
            watch._silent = frozenset(range(model.n_vocab))
            return watch

    strategy = Strategy(Remembers((*prompt, *plain.output_ids), 4)) | Blind()
    session = engine.add(Session(prompt, strategy=strategy, eos=[plain.output_ids[5]]))
    finish(engine)
    assert session.error is None
    assert [each.action for each in session.interventions] == ["restart"]
    assert session.output_ids == plain.output_ids[: plain.output_ids.index(plain.output_ids[5]) + 1]
    assert sum(step.prefilled for step in session.steps) == read
    assert (model.pools.free_pages, model.pools.free_slots) == (model.pools.pages, model.pools.slots)


def test_log_probabilities_are_those_of_the_second_try(truth):
    wrong = [BLANK] * 4
    strategy = way("right", [*PROMPT, *wrong, END], size=1) | EmptyRetry()
    session = written(Wavering(wrong), PROMPT, strategy, sampling=Sampling(logprobs=0), **KNOWN)
    assert session.output_ids == truth
    assert [entry.token for entry in session.logprobs] == truth


def test_held_tokens_are_emitted_when_patience_ends():
    """What can't be seen is handed on all the same, and the place to go back to is forgotten."""
    toy = Toy(law=script(4, [BLANK] * 30))
    strategy = way("right", [*PROMPT, *[BLANK] * 30], size=1) | EmptyRetry(patience=6)
    engine, session = Engine(toy), Session(PROMPT, strategy=strategy, max_tokens=30, **KNOWN)
    engine.add(session)
    while session.n_tokens < 6:
        assert not session.has_emitted
        engine.step()
    assert session.has_emitted
    assert (session.prompt_snapshot, toy.pools.snapshots) == (None, 0)
    engine.close()
