"""Recoveries under a grammar: injections, restarts, held tokens, minimum lengths."""

import numpy as np
import pytest
from ahead_toy import AheadToy
from toy import Toy
from watching import WAYS, way, written
from word_grammar import WordGrammar

from dflash.decode.drafting.device_draft import can_defer
from dflash.decode.engine import Engine
from dflash.decode.recoveries.base import HOLD, PASS, Inject
from dflash.decode.recoveries.empty_retry import EmptyRetry
from dflash.decode.recoveries.min_tokens import MinTokens
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.decode.special_tokens import SpecialTokens

PROMPT = [12, 8, 7, 4]
END, BLANK, WORD, OPEN, NAME = 0, 1, 5, 6, 7
MARKS = SpecialTokens(silent=frozenset([BLANK]))


def said(text, n_vocab=13):
    """Logits that follow a text, then end; an injected call closes with a word."""

    def law(path):
        new = path[len(PROMPT) :]
        logits = np.linspace(0, 1, n_vocab)
        follows = {OPEN: NAME, NAME: WORD}
        logits[follows.get(new[-1] if new else None, text[len(new)] if len(new) < len(text) else END)] = 9
        return logits

    return Toy(law=law)


class Stalls:
    """Injects tokens once where the output ends."""

    name, restarts = "Stalls", False

    def __init__(self, *tokens):
        self.tokens = tokens

    def start(self, session):
        return Stalls(*self.tokens)

    def check_step(self, session, accepted):
        if accepted.finish != "stop" or not self.tokens:
            return PASS
        tokens, self.tokens = self.tokens, ()
        return Inject(len(accepted.tokens) - 1, tokens, "it ended without a call")


def calls(path):
    """Words, then the end or a call, which is OPEN NAME WORD."""
    if OPEN not in path:
        return {WORD, BLANK, OPEN, END} if path else {WORD, BLANK}
    return [{NAME}, {WORD}, {END}, set()][len(path) - 1 - path.index(OPEN)]


@pytest.mark.parametrize("kind", WAYS)
def test_a_legal_injection_moves_the_grammar_on(kind):
    truth = [WORD, WORD, OPEN, NAME, WORD, END]
    session = written(
        said([WORD, WORD]),
        PROMPT,
        way(kind, [*PROMPT, WORD, WORD, END]) | Stalls(OPEN, NAME),
        eos=[END],
        grammar=WordGrammar(calls, 13),
    )
    assert session.output_ids == truth
    assert [each.action for each in session.interventions] == ["inject"]
    assert session.grammar._matcher.path == truth


@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize("tokens", [(NAME,), (OPEN, WORD), (OPEN, NAME, WORD, WORD)])
def test_an_illegal_injection_is_skipped_and_counted(kind, tokens):
    session = written(
        said([WORD, WORD]),
        PROMPT,
        way(kind, [*PROMPT, WORD, WORD, END]) | Stalls(*tokens),
        eos=[END],
        grammar=WordGrammar(calls, 13),
    )
    assert session.output_ids == [WORD, WORD, END]
    (skipped,) = session.interventions
    assert (skipped.recovery, skipped.action) == ("Stalls", "skip")
    assert str(skipped) == "Stalls: it ended without a call; skipped, since the grammar refuses it"


def test_a_restart_takes_the_grammar_back():
    """The second try is masked as the first one was, not as its continuation."""

    def rule(path):
        return [{BLANK, 9}, {BLANK, END}, {END}, set()][len(path)] if 9 not in path else {END}

    toy = Toy()
    toy.before_forward = lambda spans: setattr(
        toy, "drafted", any(not span.prefill and len(span.tokens) > 1 for span in spans)
    )
    toy.expect = lambda memory, text: [
        5.0,
        9.0 if toy.drafted and len(text) == len(PROMPT) else 0.0,
        *[0.0] * 7,
        7.0,
        0,
        0,
        0,
    ]
    strategy = way("right", [*PROMPT, BLANK, END]) | EmptyRetry()
    grammar = {"grammar": WordGrammar(rule, 13)}
    session = written(toy, PROMPT, strategy, eos=[END], special_tokens=MARKS, **grammar)
    assert [each.action for each in session.interventions] == ["restart"]
    assert session.output_ids == session.grammar._matcher.path == [9, END]


def test_dropped_held_tokens_leave_the_grammar():
    class Holds:
        name, restarts = "Holds", False

        def start(self, session):
            return self

        def check_step(self, session, accepted):
            return HOLD if session.n_tokens + len(accepted.tokens) < 6 else PASS

    session = Session(
        PROMPT,
        strategy=way("plain", ()) | Holds(),
        max_tokens=20,
        eos=[END],
        grammar=WordGrammar(lambda path: {WORD, 9}, 13),
        observer=lambda session, tokens: 0 if session.n_tokens > 3 else None,
    )
    list(Engine(said([WORD] * 9)).stream(session))
    assert session.finish_reason == "stop"
    assert session.grammar._matcher.path == session.output_ids


@pytest.mark.parametrize("kind", WAYS)
def test_the_end_of_a_grammar_beats_a_minimum_length(kind):
    """As in vLLM: where only end tokens are legal, they are not held off; where others are, they are."""

    def rule(path):
        return [{WORD}, {9, END}, {9, END}, {END}, set()][len(path)]

    strategy = way(kind, [*PROMPT, WORD, 9, 9, END]) | MinTokens(8)
    session = written(said([WORD]), PROMPT, strategy, eos=[END], grammar=WordGrammar(rule, 13))
    assert session.output_ids == [WORD, 9, 9, END]
    assert session.finish_reason == "stop"


def test_a_session_with_a_grammar_takes_no_part_in_overlapped_steps():
    """The mask of a token depends on the token before it, which is not on the host yet."""
    plain = Session(PROMPT, max_tokens=12)
    constrained = Session(PROMPT, max_tokens=12, grammar=WordGrammar(lambda path: {3, 5, 9}, 13))
    assert can_defer(plain)
    assert not can_defer(constrained)
    toy = AheadToy()
    list(Engine(toy).run([plain]))
    assert toy.ahead > 5
    toy = AheadToy()
    list(Engine(toy).run([constrained]))
    assert toy.ahead == 0
    assert set(constrained.output_ids) <= {3, 5, 9}


@pytest.mark.parametrize("kind", WAYS)
def test_recoveries_that_do_nothing_change_nothing(kind):
    sampling = Sampling(temperature=1.0, seed=4)
    grammar = {"grammar": WordGrammar(lambda path: {3, 5, 9} | ({END} if len(path) > 9 else set()), 13)}
    alone = written(Toy(), PROMPT, way("plain", ()), sampling=sampling, eos=[END], **grammar)
    strategy = way(kind, [*PROMPT, *alone.output_ids]) | EmptyRetry() | MinTokens(3)
    assert written(Toy(), PROMPT, strategy, sampling=sampling, eos=[END], **grammar).output_ids == alone.output_ids
