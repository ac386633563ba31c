"""The BPE of characters, with spaces written as a letter and bytes for characters that have no token."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.errors import ContextOverflow, FormatError, Unsupported
from dflash.model.text.detokenizer import TextStream
from dflash.model.text.tokenizer import Tokenizer

SPACE = "\u2581"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
MERGES = [
    ("t", "h"), ("th", "e"), (SPACE, "the"), ("\n", "\n"), ("\n\n", "\n\n"), (SPACE, SPACE), ("e", "n"),
    (SPACE + SPACE, SPACE + SPACE), (SPACE, "t"), ("h", "e"), ("n", "\n"), ("a", "n"),
]  # fmt: skip
NORMAL = [*"thenab\n.", SPACE, "\u00e9", *map("".join, MERGES)]
SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<turn|>", "<|turn>", "<|channel>"]
TOKENS = SPECIAL + BYTES + NORMAL
TYPES = [3] * 6 + [4] + [6] * 256 + [1] * len(NORMAL)
texts = st.text(alphabet="then ab.\n\u00e9\u65e5\U0001f600\x00" + SPACE, max_size=40)


def metadata(**changes):
    keys = {"model": "gemma4", "tokens": TOKENS, "token_type": TYPES, "merges": [" ".join(merge) for merge in MERGES]}
    keys |= {"eos_token_id": 1, "bos_token_id": 2, "add_bos_token": True} | changes
    return {f"tokenizer.ggml.{name}": value for name, value in keys.items()}


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_gguf(metadata())


def merged(text):
    """Ids of a text without special tokens: merge the pair of highest priority, the first of several, while there is one."""
    parts, ranks = list(text.replace(" ", SPACE)), {pair: rank for rank, pair in enumerate(MERGES)}
    while True:
        pairs = [(ranks.get(pair, len(ranks)), i) for i, pair in enumerate(pairwise(parts))]
        rank, i = min(pairs, default=(len(ranks), 0))
        if rank == len(ranks):
            break
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    of_bytes = [[f"<0x{byte:02X}>" for byte in part.encode()] for part in parts]
    return [
        TOKENS.index(token)
        for part, own in zip(parts, of_bytes, strict=True)
        for token in ([part] if part in NORMAL else own)
    ]


@settings(max_examples=300)
@given(text=texts)
def test_ids_are_those_of_the_merges(tokenizer, text):
    ids = tokenizer.encode(text, special=False)
    assert ids == merged(text)
    assert tokenizer.decode(ids) == text.replace(SPACE, " ")
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == text.replace(SPACE, " ")


def test_spaces_and_unknown_characters_are_tokenized(tokenizer):
    """A space is part of the token after it, a run of line breaks one token, an unknown character its bytes."""
    ids = tokenizer.encode("the then\n\n\n\n.\u65e5", special=False)
    assert [TOKENS[i] for i in ids] == ["the", SPACE + "the", "n", "\n\n\n\n", ".", "<0xE6>", "<0x97>", "<0xA5>"]
    assert tokenizer.encode("the") == [2, *tokenizer.encode("the", special=False)]


def test_bytes_are_no_added_tokens(tokenizer):
    ids = tokenizer.encode("<|turn>the<turn|>")
    assert [TOKENS[i] for i in ids] == ["<bos>", "<|turn>", "the", "<turn|>"]
    assert TOKENS.index("<|turn>") not in tokenizer.encode("<|turn>", special=False)
    assert tokenizer.encode("<|channel>", special=False) == [6]
    assert tokenizer.eos_ids == (1, 4)
    assert tokenizer.decode(ids, skip_special=True) == "the"
    assert tokenizer.id_of(" the") == TOKENS.index(SPACE + "the")
    assert tokenizer.id_of("<|turn>") == 5
    assert tokenizer.id_of("<0x41>") is None
    assert (tokenizer.pre, tokenizer.normalizer) == ("gemma4", "none")
    assert not tokenizer.is_added(TOKENS.index("<0x41>"))


def test_a_character_may_be_split_over_tokens(tokenizer):
    stream = TextStream(tokenizer)
    parts = [stream.push([token]) for token in tokenizer.encode("a\U0001f600 the", special=False)]
    assert "".join(parts) + stream.finish() == "a\U0001f600 the"


def test_a_long_text_is_refused(tokenizer):
    with pytest.raises(ContextOverflow, match="at most 50 are allowed"):
        tokenizer.encode("the then " * 5000, max_tokens=50)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"token_type": [*TYPES[:7], 1, *TYPES[8:]]}, FormatError, "has no byte token <0x00>, so not every text has ids"),
        ({"tokens": [*TOKENS[:-1], "<0xG0>"], "token_type": [*TYPES[:-1], 6]}, FormatError, "byte token '<0xG0>', wanted"),
        ({"merges": ["t z"]}, FormatError, "merges\\[0\\] is 't z', but 'z' is not a token"),
        ({"token_type": [7, *TYPES[1:]]}, FormatError, "token_type\\[0\\] is 7, wanted 1 to 6"),
        ({"model": "t5"}, Unsupported, "model is 't5'; dflash runs 'gpt2' .* 'gemma4' and 'llama'"),
        ({"model": "gpt2", "pre": "gemma4"}, Unsupported, "pre is 'gemma4'"),
    ],
)
def test_malformed_metadata_is_refused(changes, error, message):
    with pytest.raises(error, match=message):
        Tokenizer.from_gguf(metadata(**changes))
