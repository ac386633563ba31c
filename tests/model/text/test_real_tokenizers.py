"""Ids of the tokenizers of Llama, Mistral and SmolLM, beside those of other libraries on the same vocabulary."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Reference
from tokenizers import models, normalizers, pre_tokenizers

from dflash.errors import FormatError
from dflash.model.text.detokenizer import TextStream
from dflash.model.text.tokenizer import Tokenizer
from dflash.model.text.vocabulary import BYTE_LETTERS, SPACE

DATA = Path(__file__).parents[2] / "data" / "tokenizers"
TEXTS = json.loads((DATA / "texts.json").read_text(encoding="utf-8"))
BYTES = json.loads((DATA / "byte_level.json").read_text(encoding="utf-8"))
PIECES = json.loads((DATA / "sentencepiece.json").read_text(encoding="utf-8"))
ADDED = ["<|begin|>", "<|end|>"]
NORMAL = [*BYTE_LETTERS, *(merge.replace(" ", "") for merge in BYTES["merges"])]
HOSTILE = "aeinrst'dAEIÉé\u0301\u200d\ufeff日本при \t\r\n.,/_12345½٣\u2581\x00😀"
texts = st.one_of(st.text(max_size=20), st.text(alphabet=HOSTILE, max_size=30), st.sampled_from(TEXTS))


def byte_level(pre, **changes):
    keys = {"model": "gpt2", "pre": pre, "tokens": [*NORMAL, *ADDED], "token_type": [1] * len(NORMAL) + [3, 3]}
    keys |= {"merges": BYTES["merges"], "bos_token_id": len(NORMAL), "eos_token_id": len(NORMAL) + 1} | changes
    return Tokenizer.from_gguf({f"tokenizer.ggml.{name}": value for name, value in keys.items() if value is not None})


def pieces(added=(), **changes):
    n = len(added)
    keys = {"model": "llama", "tokens": [*PIECES["tokens"], *added], "token_type": [*PIECES["types"], *[3] * n]}
    keys |= {"scores": [*PIECES["scores"], *[0.0] * n], "bos_token_id": 1, "eos_token_id": 2} | changes
    return Tokenizer.from_gguf({f"tokenizer.ggml.{name}": value for name, value in keys.items() if value is not None})


@pytest.mark.parametrize("pre", BYTES["ids"])
def test_ids_are_those_of_tiktoken(pre):
    """Without a piece that is a token but not its merges, both join the pair of the lowest rank first."""
    tokenizer = byte_level(pre, add_bos_token=False)
    for text, ids in zip(TEXTS, BYTES["ids"][pre], strict=True):
        assert tokenizer.encode(text) == ids, text
        assert tokenizer.decode(ids) == text


@settings(max_examples=200, deadline=None)
@given(text=texts)
def test_digits_of_smollm_stand_alone(text):
    vocabulary = {token: i for i, token in enumerate(NORMAL)}
    reference = Reference(models.BPE(vocab=vocabulary, merges=[tuple(merge.split(" ")) for merge in BYTES["merges"]]))
    digits = pre_tokenizers.Digits(individual_digits=True)
    reference.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    assert byte_level("smollm").encode(text) == reference.encode(text).ids


@pytest.mark.parametrize("pre", ["llama-bpe", "llama3", "llama-v3", "tekken"])
def test_a_piece_that_is_a_token_stays_whole(pre):
    """Llama 3 and Mistral NeMo have tokens that no merges lead to."""
    tokens = [*NORMAL, *ADDED, "xqzj"]
    whole = byte_level(pre, tokens=tokens, token_type=[1] * len(NORMAL) + [3, 3, 1])
    assert whole.encode("xqzj") == [len(NORMAL), len(NORMAL) + 2]
    assert len(byte_level("qwen2", tokens=tokens, token_type=[1] * len(NORMAL) + [3, 3, 1]).encode("xqzj")) > 1


def test_a_beginning_that_the_file_does_not_mention():
    """The converters of these families wrote no ``add_bos_token`` at first."""
    for pre, adds in {"llama-bpe": True, "tekken": True, "smollm": False, "qwen2": False, "deepseek-r1-qwen": False}.items():
        assert (byte_level(pre).encode("a")[0] == len(NORMAL)) is adds, pre
        assert byte_level(pre, bos_token_id=None).encode("a") == [NORMAL.index("a")], pre
        assert byte_level(pre, add_bos_token=not adds).add_bos is not adds, pre
    assert pieces().encode("a")[0] == 1
    assert pieces(add_bos_token=False).encode("a")[0] != 1


def test_all_ends_of_a_turn():
    """Llama 3 ends a turn with one token, and a message that a tool must answer with another."""
    ends = ["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>", "<other>"]
    n = len(NORMAL)
    keys = {"tokens": [*NORMAL, *ends], "token_type": [1] * n + [3] * 4, "eos_token_id": n, "bos_token_id": None}
    assert set(byte_level("llama-bpe", **keys).eos_ids) == {n, n + 1, n + 2}
    assert byte_level("llama-bpe", **keys, eom_token_id=n + 3).eos_ids[:2] == (n, n + 3)
    normal = keys | {"token_type": [1] * (n + 4)}
    assert byte_level("llama-bpe", **normal, merges=[]).eos_ids == (n,), "ordinary text ends nothing"


def test_a_vocabulary_without_rare_bytes():
    """SmolLM2 has no token for some control characters and for planes of Unicode that nobody uses."""
    gone = {BYTE_LETTERS[byte] for byte in (0x04, 0xC0, 0xF1, 0xFF)}
    tokens = [*(token for token in NORMAL if token not in gone), *ADDED]
    types = [1] * (len(tokens) - 2) + [3, 3]
    keys = {"tokens": tokens, "token_type": types, "merges": [], "bos_token_id": None, "eos_token_id": len(tokens) - 1}
    tokenizer = byte_level("smollm", **keys)
    assert tokenizer.decode(tokenizer.encode("a\x04b")) == "ab"
    with pytest.raises(FormatError, match="no token for the byte 0x20"):
        byte_level("smollm", **keys | {"tokens": ["" if each == "\u0120" else each for each in tokens]})


def test_ids_are_those_of_sentencepiece():
    tokenizer = pieces(add_bos_token=False)
    for text, ids in zip(TEXTS, PIECES["ids"], strict=True):
        assert tokenizer.encode(text) == ids, text
        assert tokenizer.decode(ids) == text.replace(SPACE, " ")


@settings(max_examples=200, deadline=None)
@given(text=texts)
def test_streamed_text_of_pieces(text):
    """A stream continues a text, so that its first space belongs to it. Characters may be split over tokens."""
    tokenizer = pieces()
    ids = tokenizer.encode(text)[1:]
    stream = TextStream(tokenizer)
    streamed = "".join(stream.push([token]) for token in ids) + stream.finish()
    assert streamed == tokenizer.decode(ids, continues=True) == (" " if text else "") + text.replace(SPACE, " ")
    assert tokenizer.decode(ids) == text.replace(SPACE, " ")
    assert tokenizer.decode([1, *ids], skip_special=True) == tokenizer.decode(ids)
    part = tokenizer.encode(text, special=False)
    assert tokenizer.decode(part, continues=True) == text.replace(SPACE, " "), "a part of a text gets no space"


def test_spaces_after_added_tokens_of_pieces():
    """One space stands after an added token, written or not; at the start of a text there is one more than written."""
    tokenizer = pieces(["[INST]", "[/INST]"])
    inst, end = (tokenizer.id_of(text) for text in ("[INST]", "[/INST]"))
    [the] = tokenizer.encode("the")[1:]
    assert tokenizer.token_bytes(the) == b" the"
    for text in ("[INST]the[/INST]", "[INST] the[/INST]", "<s>[INST] the[/INST]", "<s>[INST]the[/INST]"):
        assert tokenizer.encode(text) == [1, inst, the, end], text
    assert tokenizer.encode("the</s>the") == [1, the, 2, the]
    assert tokenizer.encode("<s> the") == tokenizer.encode("<s>the") == [1, the] != tokenizer.encode(" the")
    assert tokenizer.decode([1, the]) == "<s>the"
    assert pieces(["[INST]"], add_space_prefix=False).encode("[INST]the")[2:] != [the]


def test_a_library_gives_the_ids_of_scores():
    """`tokenizers` with the merges that Transformers makes from scores."""
    scores = {
        token: score
        for token, score, kind in zip(PIECES["tokens"], PIECES["scores"], PIECES["types"], strict=True)
        if kind == 1
    }
    pairs = [
        (text[:n], text[n:]) for text in scores for n in range(1, len(text)) if text[:n] in scores and text[n:] in scores
    ]
    pairs.sort(key=lambda pair: (scores["".join(pair)], len(pair[0]), len(pair[1])), reverse=True)
    vocabulary = {token: i for i, token in enumerate(PIECES["tokens"])}
    reference = Reference(models.BPE(vocab=vocabulary, merges=pairs, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    reference.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    for text in TEXTS:
        assert pieces().encode(text)[1:] == reference.encode(text).ids


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": None}, "tokenizer.ggml.scores is missing"),
        ({"scores": [0.0]}, "scores has 1 values, wanted"),
        ({"scores": [float("nan"), *PIECES["scores"][1:]]}, r"scores\[0\] is nan, wanted a finite number"),
        ({"scores": ["1", *PIECES["scores"][1:]]}, "scores holds values of type str, wanted numbers"),
        ({"tokens": [*PIECES["tokens"][:-1], "the"], "scores": PIECES["scores"]}, None),
        ({"tokens": [*PIECES["tokens"][:-1], SPACE + "the"]}, "is '\u2581the' again, after id"),
        ({"add_space_prefix": 1}, "add_space_prefix is of type int, wanted true or false"),
    ],
)
def test_malformed_metadata_is_refused(changes, message):
    if message is None:
        assert pieces(**changes).decode(pieces(**changes).encode("x the"), skip_special=True) == "x the"
        return
    with pytest.raises(FormatError, match=message):
        pieces(**changes)
