"""Which common tokens do for a text."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dflash.decode.drafters.vocab_tracker import FEW, RECENT, VocabTracker
from dflash.model.draft.vocabulary import Vocabulary

COMMON = Vocabulary((slice(0, 40), slice(96, 100))), Vocabulary((slice(0, 60), slice(96, 100)))


@given(st.lists(st.lists(st.sampled_from([97, 0, 50, 70]), max_size=2 * RECENT), min_size=1, max_size=4))
def test_the_last_tokens_decide_however_a_text_grows(parts):
    usual, text = VocabTracker(COMMON, 100, Counter()), [1]
    for part in parts:
        text += part
        enough = [sum(not known.has(token) for token in text[-RECENT:]) <= FEW for known in COMMON]
        assert usual.select(text) == (enough.index(True) if any(enough) else None)


def test_others_are_forgotten():
    usual, text = VocabTracker(COMMON, 100, Counter()), [0] + [40] * (FEW + 1)
    assert usual.select(text) == 1
    text += [39] * (RECENT - FEW - 1)
    assert usual.select(text) == 1
    text.append(96)
    assert usual.select(text) == 0


def test_without_smaller_vocabularies_none_is_selected():
    counts = Counter()
    usual = VocabTracker((), 100, counts)
    assert usual.select([0] * RECENT) is None
    usual.count()
    assert not counts


def test_steps_are_counted_by_what_did():
    counts = Counter()
    usual, text = VocabTracker(COMMON, 100, counts), [0]
    for token, n in ((0, 1), (50, 2), (70, 3)):
        text += [token] * (FEW + 1)
        usual.select(text)
        for _ in range(n):
            usual.count()
    assert counts == {40: 1, 60: 2, 100: 3}
