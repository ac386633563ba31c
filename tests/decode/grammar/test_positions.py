"""Positions in grammars: what was undone leaves no trace; trees are trimmed; masks are applied bit by bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from word_grammar import END, WordGrammar, rule, tokens_of, words_of

from dflash.decode.drafting.draft import Draft
from dflash.decode.grammar.after import AfterToken
from dflash.decode.grammar.drafts import legal_part, walk
from dflash.errors import KernelError
from dflash.kernels import sample

CALL, OPEN, CLOSE = 3, 12, 13


def call(path):
    """A call's body: one or two words, then CLOSE."""
    if path[-1:] == [CLOSE]:
        return {END}
    return {CLOSE} if len(path) == 2 else {5, 6} | ({CLOSE} if path else set())


def repeated(path):
    """`AfterToken(call, CALL, repeats=True)` by its definition: the tokens of the open call, None in free output."""
    body = None
    for token in path:
        if body is None:
            body = [] if token == CALL else None
        elif token == CLOSE:
            body = None
        else:
            body = [*body, token]
    return body


def optional(path):
    """`AfterToken(rule, CLOSE, opens=OPEN)`: what the grammar has seen, None while output is free."""
    if path[:1] != [OPEN]:
        return path
    return path[path.index(CLOSE) + 1 :] if CLOSE in path else None


CASES = {
    "repeats": (AfterToken(WordGrammar(call), CALL, repeats=True), repeated, call, None),
    "once": (
        AfterToken(WordGrammar(), CALL),
        lambda path: path[path.index(CALL) + 1 :] if CALL in path else None,
        rule,
        None,
    ),
    "optional": (AfterToken(WordGrammar(), CLOSE, opens=OPEN), optional, rule, OPEN),
    "nested": (
        AfterToken(AfterToken(WordGrammar(call), CALL, repeats=True), CLOSE),
        lambda path: repeated(path[path.index(CLOSE) + 1 :]) if CLOSE in path else None,
        call,
        None,
    ),
}


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=60, deadline=None)
@given(moves=st.lists(st.tuples(st.integers(0, 13), st.integers(0, 4)), max_size=40))
def test_any_moves_end_where_the_remaining_tokens_lead(name, moves):
    grammar, seen_by, inner, opens = CASES[name]
    matcher, path = grammar.start(), []
    for token, undone in moves:
        seen = seen_by(path)
        legal = set(range(14)) if seen is None else inner(seen) | ({opens} if opens is not None and not path else set())
        assert matcher.free == (seen is None)
        if seen is not None:
            assert tokens_of(matcher.mask()) == legal
            assert matcher.is_accepting == (END in inner(seen))
        assert matcher.advance(token) == (token in legal)
        path += [token] if token in legal else []
        n = min(undone // 2, len(path))
        matcher.rollback(n)
        path = path[: len(path) - n]


def test_reasoning_that_may_open_leaves_the_choice():
    matcher = AfterToken(WordGrammar(lambda path: {5}), CLOSE, opens=OPEN).start()
    assert tokens_of(matcher.mask()) == {5, OPEN}
    assert matcher.forced() == (), "5 is not the only continuation while reasoning may open"
    assert matcher.advance(5)
    assert tokens_of(matcher.mask()) == {5}
    assert matcher.forced() == [5] * 8


@pytest.mark.parametrize("seed", range(20))
def test_trees_keep_their_legal_nodes(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(0, 40))
    draft = Draft(rng.integers(0, 14, n), [int(rng.integers(-1, i)) for i in range(n)])
    matcher = WordGrammar().start()
    matcher.path = [12, 3, 4]
    legal = []
    for node in range(n):
        tokens = [int(draft.tokens[each]) for each in draft.path(node)]
        if all(token in rule([12, 3, 4, *tokens[:i]]) for i, token in enumerate(tokens)):
            legal.append(tokens)
    part = legal_part(matcher, draft)
    assert [[int(part.tokens[each]) for each in part.path(node)] for node in range(len(part))] == legal
    assert matcher.path == [12, 3, 4]


def test_a_walk_that_is_left_early_goes_back():
    matcher = WordGrammar().start()
    visit = walk(matcher, Draft([3, 4, 5]))
    assert [next(visit), next(visit), next(visit)] == [-1, 0, 1]
    assert matcher.path == [3, 4]
    visit.close()
    assert matcher.path == []


def test_a_legal_chain_stays_what_it_is():
    """With its scores, which the adaptive drafter reads."""
    draft = Draft([3, 4, 5, 6], scores=np.zeros(4, np.float32))
    assert legal_part(WordGrammar().start(), draft) is draft
    cut = legal_part(WordGrammar().start(), Draft([3, 4, 9, 6], scores=np.arange(4, dtype=np.float32)))
    assert (cut.tokens.tolist(), cut.scores.tolist()) == ([3, 4], [0, 1])


@pytest.mark.parametrize("n", [1, 7, 8, 31, 32, 33, 64, 1000])
def test_masks_bit_by_bit(n):
    rng = np.random.default_rng(n)
    row = rng.standard_normal(n, np.float32)
    row[rng.random(n) < 0.1] = np.nan
    legal = np.flatnonzero(rng.random(n) < 0.5)
    before, out = row.copy(), np.full(n, np.nan, np.float32)
    sample.mask_row(row, words_of(legal, n), out=out)
    expected = np.where(np.isin(np.arange(n), legal) | np.isnan(row), row, -np.inf)
    assert np.array_equal(out, expected, equal_nan=True)
    assert np.array_equal(row, before, equal_nan=True)
    with pytest.raises(KernelError, match="words"):
        sample.mask_row(row, np.zeros(-(-n // 32) + 1, np.uint32), out=out)
