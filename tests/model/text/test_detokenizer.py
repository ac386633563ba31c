from itertools import chain, pairwise, product

import pytest
from demo_text import demo_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.errors import RequestError
from dflash.model.text.detokenizer import TextStream

TOKENIZER = demo_tokenizer()
BYTES = [next(t for t in range(16384) if TOKENIZER.token_bytes(t) == bytes([byte])) for byte in range(256)]
BROKEN = "é世\U0001f469\u200d\U0001f4bb\ufffd"

ids_of_bytes = st.binary(max_size=8).map(lambda data: [BYTES[byte] for byte in data])
ids_of_text = st.one_of(st.text(max_size=6), st.text(BROKEN, max_size=4)).map(TOKENIZER.encode)
ids_by_byte = st.text(BROKEN + "ab", max_size=4).map(lambda text: [BYTES[byte] for byte in text.encode()])
ids_of_any = st.lists(st.integers(0, 16383), max_size=4)
any_ids = st.lists(st.one_of(ids_of_bytes, ids_of_text, ids_by_byte, ids_of_any), max_size=6).map(
    lambda parts: list(chain.from_iterable(parts))
)
splits = st.lists(st.integers(0, 60), max_size=12)


def pieces(ids, cuts):
    borders = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    return [ids[a:b] for a, b in pairwise(borders)]


def run(ids, cuts=(), **settings):
    stream = TextStream(TOKENIZER, **settings)
    shown = [stream.push(piece) for piece in pieces(ids, cuts)]
    return stream, "".join([*shown, stream.finish()])


def whole(ids, skip=False):
    """Text of ids without an incomplete last character, found by trying possible continuations."""
    kept = [token for token in ids if not (skip and TOKENIZER.is_special(token))]
    data = b"".join(map(TOKENIZER.token_bytes, kept))
    for n in range(1, min(3, len(data)) + 1):
        if any(is_character(data[-n:] + bytes(more)) for k in (1, 2, 3) for more in product((0x80, 0x90, 0xA0), repeat=k)):
            data = data[:-n]
            break
    return data.decode("utf-8", "replace")


def is_character(data):
    try:
        return len(data.decode()) == 1
    except UnicodeDecodeError:
        return False


def expected(text, stop):
    """Return the text up to the stop string that is complete first, and that string, by trying every end."""
    for end in range(len(text) + 1):
        found = [s for s in stop if text[:end].endswith(s)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


@settings(max_examples=500)
@given(ids=any_ids, cuts=splits, skip=st.booleans())
def test_any_split_gives_the_text_of_decode(ids, cuts, skip):
    stream, text = run(ids, cuts, skip_special=skip)
    assert text == whole(ids, skip)
    assert (stream.stopped, stream.n_tokens) == (None, len(ids))


@settings(max_examples=300)
@given(ids=any_ids)
def test_nothing_shown_changes_and_nothing_certain_is_held(ids):
    stream, shown = TextStream(TOKENIZER), ""
    for n, token in enumerate(ids, 1):
        shown += stream.push([token])
        now = TOKENIZER.decode(ids[:n])
        assert now.startswith(shown)
        assert len(now) - len(shown) <= 2  # 1 but for ED A0..BF, where Python's decoder waits for a third byte
        for tail in ("a", "\x80", "\x80\x80"):
            later = b"".join(map(TOKENIZER.token_bytes, ids[:n])) + tail.encode("latin-1")
            assert later.decode("utf-8", "replace").startswith(shown)
    assert shown + stream.finish() == whole(ids)


@settings(max_examples=500)
@given(
    text=st.text("ab\n é", max_size=30),
    stop=st.lists(st.text("ab\n é", min_size=1, max_size=5), min_size=1, max_size=4),
    cuts=splits,
    by_byte=st.booleans(),
)
def test_any_split_stops_at_the_same_place(text, stop, cuts, by_byte):
    ids = [BYTES[byte] for byte in text.encode()] if by_byte else TOKENIZER.encode(text)
    stream, shown = run(ids, cuts, stop=stop)
    assert (shown, stream.stopped) == expected(text, stop)
    if stream.stopped is None:
        assert stream.n_tokens == len(ids)
    else:
        assert TOKENIZER.decode(ids[: stream.n_tokens]).startswith(shown)
        assert stream.n_tokens == 0 or not TOKENIZER.decode(ids[: stream.n_tokens - 1]).startswith(shown)


@settings(max_examples=300)
@given(text=st.text("ab", max_size=20), stop=st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=3))
def test_only_what_may_become_a_stop_string_is_held(text, stop):
    stream, shown = TextStream(TOKENIZER, stop=stop), ""
    for n, letter in enumerate(text, 1):
        shown += stream.push(TOKENIZER.encode(letter))
        if stream.stopped is not None:
            break
        held = text[len(shown) : n]
        starts = [length for s in stop for length in range(1, len(s)) if text[:n].endswith(s[:length])]
        assert len(held) == max(starts, default=0)
    assert shown + stream.finish() == expected(text, stop)[0]


@settings(max_examples=200)
@given(
    ids=any_ids, cuts=splits, stop=st.lists(st.sampled_from(["\ufffd", "\ufffd\ufffd", "é", "b\ufffd", "世"]), max_size=2)
)
def test_stop_strings_over_broken_bytes(ids, cuts, stop):
    stream, shown = run(ids, cuts, stop=stop)
    assert (shown, stream.stopped) == expected(whole(ids), stop)
    assert 0 <= stream.n_tokens <= len(ids)


def test_a_character_waits_for_its_last_byte():
    stream = TextStream(TOKENIZER)
    assert [stream.push([BYTES[byte]]) for byte in "a世b".encode()] == ["a", "", "", "世", "b"]
    assert stream.push([BYTES[0xE4]]) == ""
    assert stream.finish() == ""
    assert stream.finish() == ""
    assert stream.n_tokens == 6


def test_what_can_be_no_character_is_shown_at_the_end():
    for data, text in ((b"a\xff", "a\ufffd"), (b"a\xed\xa0", "a\ufffd\ufffd"), (b"a\xe4\xb8", "a"), (b"\xf0\x9f\x91", "")):
        stream, shown = run([BYTES[byte] for byte in data])
        assert (shown, stream.n_tokens) == (text, len(data))


@settings(max_examples=500)
@given(
    text=st.text("ab", max_size=20),
    stop=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    least=st.integers(0, 12),
    cuts=splits,
)
def test_stop_strings_do_not_count_before_so_many_tokens(text, stop, least, cuts):
    ids = [BYTES[byte] for byte in text.encode()]
    stream, shown = run(ids, cuts, stop=stop, min_tokens=least)
    ends = [(end, s) for end in range(least + 1, len(text) + 1) for s in stop if text[:end].endswith(s)]
    if not ends:
        assert (shown, stream.stopped) == (text, None)
        return
    end = ends[0][0]
    longest = max((s for at, s in ends if at == end), key=len)
    assert (shown, stream.stopped) == (text[: end - len(longest)], longest)


@pytest.mark.parametrize(("stop", "message"), [(5, "wanted a text or several, got 5"), ([""], "holds ''"), ([5], "holds 5")])
def test_what_is_no_stop_string(stop, message):
    with pytest.raises(RequestError, match=message):
        TextStream(TOKENIZER, stop=stop)


def test_tokens_of_the_text_before_a_stop_string():
    ids = TOKENIZER.encode("one two\n\nthree")
    stream, shown = run(ids, stop=["\n\n"])
    assert (shown, stream.stopped) == ("one two", "\n\n")
    assert TOKENIZER.decode(ids[: stream.n_tokens]) == "one two"
    stream, shown = run(ids, stop=["one"])
    assert (shown, stream.n_tokens) == ("", 0)
    stream, shown = run(ids, stop=["ne"])
    assert (shown, stream.n_tokens) == ("o", 1)


def test_tokens_of_the_text_shown_so_far():
    stream = TextStream(TOKENIZER, stop=["xyz"])
    counts = []
    for letter in "axyxyza":
        stream.push(TOKENIZER.encode(letter))
        counts.append(stream.n_tokens)
    assert counts == [1, 1, 1, 3, 3, 3, 3]
    assert stream.stopped == "xyz"


def test_what_follows_a_stop_string_is_ignored():
    stream = TextStream(TOKENIZER, stop="STOP")
    assert stream.push(TOKENIZER.encode("a STOP b")) == "a "
    assert stream.push(TOKENIZER.encode("c")) == ""
    assert stream.finish() == ""
    assert stream.stopped == "STOP"


def test_special_tokens_are_shown_or_skipped():
    ids = TOKENIZER.encode("<|im_start|>hi<|im_end|>")
    assert run(ids)[1] == "<|im_start|>hi<|im_end|>"
    assert run(ids, skip_special=True)[1] == "hi"
    assert run(ids, stop=["<|im_end|>"])[1] == "<|im_start|>hi"


@pytest.mark.parametrize("stop", [[""], ["a", ""], [None], [7]])
def test_bad_stop_strings(stop):
    with pytest.raises(RequestError, match="stop holds"):
        TextStream(TOKENIZER, stop=stop)


def test_an_unknown_id_is_refused():
    with pytest.raises(RequestError, match="token id 16384"):
        TextStream(TOKENIZER).push([16384])


def test_work_does_not_grow_with_what_came_before():
    stop = "a" * 500 + "b"
    stream = TextStream(TOKENIZER, stop=[stop])
    ids = [BYTES[ord("a")]] * 20_000
    shown = "".join(stream.push([token]) for token in ids)
    assert len(shown) == 20_000 - 500
    assert stream.push([BYTES[ord("b")]]) == ""
    assert stream.stopped == stop
