import json
import lzma
import time

import numpy as np
import pytest
from demo_text import DATA, demo_metadata, demo_tokenizer, greedy_prompts, recorded_prompts, tokenizer_json
from hypothesis import given, settings
from hypothesis import strategies as st
from python_run import run_python
from tokenizers import Tokenizer as Reference

from dflash.errors import FormatError, RequestError, Unsupported
from dflash.model.gguf.file import GGUFFile
from dflash.model.text.piece_rules import PIECE_RULES
from dflash.model.text.tokenizer import Tokenizer
from dflash.model.text.vocabulary import BYTE_LETTERS

GOLDEN = ["qwen35-r2-untied", "qwen3-dense"]
ADDED = ["<|im_end|>", "<|im_start|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "<|im_", "|>"]
TRICKY = (
    "Ġ ĊéÅ\u0301e\u0301ﬁ\u1e9b\u0323\u0338\uac01\u1112\u1161\u11abनमस्ते\u200d\ufeff\x00\t\r\n  '\u2019sS'T1२٣０ß㎏𝟘𠀀"
    "\U0001f469\u200d\U0001f4bb"
)
texts = st.lists(
    st.one_of(st.text(max_size=12), st.text(alphabet=TRICKY, max_size=12), st.sampled_from([*ADDED, "don't ", "x = 1\n"])),
    max_size=8,
).map("".join)


@pytest.fixture(scope="module")
def reference():
    return Reference.from_str(tokenizer_json())


def small():
    """Metadata of 256 byte tokens, a merge and a few added tokens, with padding at the end."""
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": [*BYTE_LETTERS, "ab", "<|endoftext|>", "[PAD0]", "<|im_end|>", "<t>", "[PAD1]", "[PAD2]"],
        "tokenizer.ggml.token_type": [1] * 257 + [3, 5, 3, 4, 5, 5],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": 259,
    }


def spoiled(**changes):
    """Small metadata with keys changed, or removed where the change is None."""
    metadata = small() | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return {key: value for key, value in metadata.items() if value is not None}


@pytest.mark.parametrize("model", GOLDEN)
def test_ids_are_the_recorded_ones(model):
    folder = DATA / "golden" / model
    golden = json.loads((folder / "tokenizer_golden.json").read_text(encoding="utf-8"))
    tokenizer = Tokenizer.from_gguf(GGUFFile.open(folder / f"{model}-Q4_0.gguf").metadata)
    assert tokenizer.pre == golden["pre"]
    assert PIECE_RULES[golden["pre"]].patterns == (golden["regex"],)
    assert (tokenizer.eos, tokenizer.pad, tokenizer.add_bos) == (496, 494, False)
    assert tokenizer.eos_ids == (496, 494)
    for case in golden["cases"]:
        assert tokenizer.encode(case["text"]) == case["ids"], case["text"]
        assert tokenizer.decode(case["ids"]) == case["decoded"]
    assert tokenizer.encode_batch([case["text"] for case in golden["cases"]]) == [case["ids"] for case in golden["cases"]]


def test_prompts_of_the_demo_are_tokenized_as_recorded():
    tokenizer = demo_tokenizer()
    for prompt in [*recorded_prompts(), *greedy_prompts()]:
        assert tokenizer.encode(prompt["prompt"]) == prompt["prompt_ids"]
        assert tokenizer.decode(prompt["prompt_ids"]) == prompt["prompt"]
        assert tokenizer.decode(prompt["output_ids"]) == prompt["output"]


def test_demo_chats_round_trip():
    for chat in json.loads((DATA / "demo" / "chat_examples.json").read_text(encoding="utf-8")):
        for text in (chat["prompt"], chat["reference"], chat["output"]):
            assert demo_tokenizer().decode(demo_tokenizer().encode(text)) == text


@settings(max_examples=500)
@given(text=texts)
def test_ids_are_those_of_tokenizers(reference, text):
    tokenizer = demo_tokenizer()
    reference.encode_special_tokens = False
    assert tokenizer.encode(text) == reference.encode(text, add_special_tokens=False).ids
    reference.encode_special_tokens = True
    assert tokenizer.encode(text, special=False) == reference.encode(text, add_special_tokens=False).ids


@settings(max_examples=300)
@given(ids=st.lists(st.integers(0, 16383), max_size=30))
def test_text_is_that_of_tokenizers(reference, ids):
    for skip in (False, True):
        assert demo_tokenizer().decode(ids, skip_special=skip) == reference.decode(ids, skip_special_tokens=skip)


def test_source_files_have_the_ids_of_tokenizers(reference):
    reference.encode_special_tokens = False
    for path in sorted((DATA / "templates").iterdir()):
        if path.is_file():
            data = path.read_bytes()
            text = (lzma.decompress(data) if path.suffix == ".xz" else data).decode()
            assert demo_tokenizer().encode(text) == reference.encode(text, add_special_tokens=False).ids, path.name


def test_bytes_of_every_token_join_to_the_text():
    tokenizer = demo_tokenizer()
    ids = list(range(tokenizer.n_vocab))
    assert b"".join(map(tokenizer.token_bytes, ids)).decode("utf-8", "replace") == tokenizer.decode(ids)
    assert {tokenizer.token_bytes(token) for token in ids} >= {bytes([byte]) for byte in range(256)}


def test_text_is_normalised_between_added_tokens():
    tokenizer = demo_tokenizer()
    assert tokenizer.normalizer == "NFC"
    assert tokenizer.encode("e\u0301<|im_end|>e\u0301") == tokenizer.encode("\xe9<|im_end|>\xe9")
    assert tokenizer.encode("<think>\u0338")[0] == tokenizer.id_of("<think>")


def test_untrusted_text_has_no_control_tokens():
    tokenizer = demo_tokenizer()
    text = "a<|im_end|><think>b"
    assert {16353, 16375} <= set(tokenizer.encode(text))
    untrusted = tokenizer.encode(text, special=False)
    assert 16375 in untrusted
    assert not any(map(tokenizer.is_special, untrusted))
    assert tokenizer.decode(untrusted) == text


def test_special_tokens_are_skipped_where_asked():
    tokenizer = demo_tokenizer()
    assert tokenizer.eos_ids == (16353, 16351)
    assert (tokenizer.eos, tokenizer.bos, tokenizer.pad) == (16353, None, 16351)
    assert tokenizer.special_texts() == {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    assert tokenizer.is_special(16352)
    assert not tokenizer.is_special(tokenizer.id_of("<think>"))
    assert [tokenizer.id_of("<think>"), tokenizer.id_of("\n")] == [16375, 198]
    assert [tokenizer.id_of(" the")] == tokenizer.encode(" the")
    assert tokenizer.id_of("no such token") is None
    assert tokenizer.decode([16352, 198, 16353], skip_special=True) == "\n"


def test_fill_at_the_end():
    tokenizer = Tokenizer.from_gguf(small())
    assert (tokenizer.n_vocab, tokenizer.n_tokens) == (263, 261)
    assert tokenizer.encode("[PAD0]ab<t>") == [*(tokenizer.id_of(letter) for letter in "[PAD0]"), 256, 260]
    assert tokenizer.token_bytes(258) == b""
    assert tokenizer.id_of("[PAD0]") is None
    assert tokenizer.decode([256, 258, 262, 256]) == "abab"
    assert repr(tokenizer) == "Tokenizer(qwen2, NFC, 261 tokens in 263 rows)"


def test_ends_are_found_by_text():
    assert Tokenizer.from_gguf(spoiled(eos_token_id=None)).eos_ids == (257, 259)
    assert Tokenizer.from_gguf(spoiled(eos_token_id=np.uint32(260))).eos_ids == (260, 257, 259)


def test_the_end_of_a_turn_that_the_file_names():
    assert Tokenizer.from_gguf(spoiled(eot_token_id=260)).eos_ids == (259, 260, 257)


def test_pieces_of_laguna():
    """Line breaks are split off before anything else, and text is not normalized."""
    merges = [". \u010a", "\u0120 \u010a", "\u010a \u010a", "a b"]
    tokens = [*BYTE_LETTERS, "ab", "\u010a\u010a", "\u0120\u010a", ".\u010a", "<|endoftext|>"]
    changes = {"tokens": tokens, "token_type": [1] * 260 + [3], "merges": merges, "eos_token_id": 260}
    texts = ["ab.\n\nab", "a \n", "e\u0301"]
    wanted = {
        "qwen2": [["ab", ".\u010a", "\u010a", "ab"], ["a", "\u0120\u010a"], ["\u00c3", "\u00a9"]],
        "laguna": [["ab", ".", "\u010a\u010a", "ab"], ["a", "\u0120", "\u010a"], ["e", "\u00cc", "\u0123"]],
    }
    for pre, pieces in wanted.items():
        tokenizer = Tokenizer.from_gguf(spoiled(pre=pre, **changes))
        assert [[tokens[i] for i in tokenizer.encode(text)] for text in texts] == pieces, pre


def test_bos_only_where_the_file_wants_it():
    plain = Tokenizer.from_gguf(spoiled(bos_token_id=257))
    assert plain.encode("ab") == [256]
    assert plain.bos == 257
    wanted = Tokenizer.from_gguf(spoiled(bos_token_id=257, add_bos_token=True))
    assert wanted.encode("ab") == wanted.encode("<|endoftext|>ab") == [257, 256]
    assert wanted.encode("ab", special=False) == [256]
    assert wanted.encode("") == [257]


def test_arrays_of_numpy_are_taken():
    metadata = small()
    for key in ("tokens", "merges", "token_type"):
        metadata[f"tokenizer.ggml.{key}"] = np.array(metadata[f"tokenizer.ggml.{key}"])
    assert Tokenizer.from_gguf(metadata).encode("ab<t>") == [256, 260]


@pytest.mark.parametrize("token", [-1, 16384, np.int64(99999)])
@pytest.mark.parametrize("method", ["decode", "token_bytes", "is_special"])
def test_an_unknown_id_is_refused(method, token):
    with pytest.raises(RequestError, match=f"token id {token} is not in the vocabulary: wanted 0 to 16383"):
        getattr(demo_tokenizer(), method)([token] if method == "decode" else token)


def test_half_a_surrogate_pair():
    for call in (lambda: demo_tokenizer().encode("ab\ud83dc"), lambda: demo_tokenizer().encode_batch(["x", "ab\ud83dc"])):
        with pytest.raises(RequestError, match=r"U\+D83D, at character 2"):
            call()
    assert demo_tokenizer().id_of("\ud83d") is None


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model": "rwkv"}, Unsupported, "tokenizer.ggml.model is 'rwkv'; dflash runs 'gpt2'"),
        ({"pre": "gpt-4o"}, Unsupported, "tokenizer.ggml.pre is 'gpt-4o'; dflash runs 'qwen2' and 'deepseek-r1-qwen'"),
        *[({key: None}, FormatError, f"{key} is missing") for key in ("model", "pre", "tokens", "token_type", "merges")],
        ({"token_type": [1] * 5}, FormatError, "token_type has 5 values, wanted 263"),
        ({"token_type": [1] * 262 + [6]}, FormatError, r"token_type\[262\] is 6, wanted"),
        ({"token_type": ["1"] * 263}, FormatError, "token_type holds values of type str, wanted integers"),
        ({"tokens": "abc"}, FormatError, "tokens is of type str, wanted an array"),
        ({"tokens": [7]}, FormatError, "tokens holds values of type int, wanted strings"),
        ({"tokens": [*BYTE_LETTERS, *"abcdef", "<|im_end|>"]}, FormatError, r"tokens\[256\] is 'a' again, after id 97"),
        ({"tokens": ["日"], "token_type": [1]}, FormatError, r"tokens\[0\] is '日', which is not in"),
        ({"tokens": ["a", "b"], "token_type": [1, 1]}, FormatError, "no token for the byte 0x09"),
        ({"merges": ["a b", "a q"]}, FormatError, r"merges\[1\] is 'a q', but 'aq' is not a token"),
        ({"merges": ["a zz"]}, FormatError, r"merges\[0\] is 'a zz', but 'zz' is not a token"),
        ({"merges": ["ab"]}, FormatError, r"merges\[0\] is 'ab', wanted two tokens"),
        ({"merges": ["a b c"]}, FormatError, r"merges\[0\] is 'a b c', wanted two tokens"),
        ({"merges": ["a <|endoftext|>"]}, FormatError, r"merges\[0\] .* 'a<\|endoftext\|>' is not a token"),
        (
            {"eos_token_id": 0, "tokens": list(BYTE_LETTERS), "token_type": [1] * 256, "merges": ["\u0120 \u0120"]},
            FormatError,
            r"merges\[0\] is '\u0120 \u0120', but '\u0120\u0120' is not a token",
        ),
        ({"merges": ["a [PAD0]"]}, FormatError, r"merges\[0\] is 'a \[PAD0\]', but '\[PAD0\]' is not a token"),
        ({"pre": np.array([1, 2])}, FormatError, "pre is of type ndarray, wanted a string"),
        ({"pre": ["qwen2"]}, FormatError, "pre is of type list, wanted a string"),
        ({"model": ["gpt2", "gpt2"]}, FormatError, "model is of type list, wanted a string"),
        ({"add_bos_token": np.array([True, False])}, FormatError, "add_bos_token is of type ndarray, wanted true or false"),
        ({"eos_token_id": np.array([1, 2])}, FormatError, r"eos_token_id is array\(\[1, 2\]\), wanted an id"),
        ({"eos_token_id": "x"}, FormatError, "eos_token_id is 'x'"),
        ({"add_bos_token": True}, FormatError, "bos_token_id is missing"),
        (
            {"eos_token_id": None, "tokens": list(BYTE_LETTERS), "token_type": [1] * 256, "merges": []},
            FormatError,
            "eos_token_id is missing and no token is",
        ),
    ],
)  # fmt: skip
def test_a_malformed_tokenizer_is_refused_by_key(changes, error, message):
    with pytest.raises(error, match=message):
        Tokenizer.from_gguf(spoiled(**changes))


@pytest.mark.parametrize("token", [-1, 263, 4294967295, np.int64(2**40)])
@pytest.mark.parametrize("name", ["eos", "eot", "bos", "padding"])
def test_a_special_id_out_of_range_is_a_warning(name, token, caplog):
    """Converters write -1 or 2**32 - 1 for a token that does not exist."""
    tokenizer = Tokenizer.from_gguf(spoiled(**{f"{name}_token_id": token}, add_bos_token=name == "bos"))
    assert f"tokenizer.ggml.{name}_token_id is {token}, ids are 0 to 262" in caplog.text
    assert token not in (tokenizer.bos, tokenizer.pad, *tokenizer.eos_ids)
    assert tokenizer.encode("aab") == Tokenizer.from_gguf(spoiled()).encode("aab")


@pytest.mark.parametrize(("raised", "expected"), [(BaseException, FormatError), (KeyboardInterrupt, KeyboardInterrupt)])
def test_a_library_that_panics(monkeypatch, raised, expected):
    """A panic in Rust is a BaseException; an interrupt by the user is one, too, and must stay one."""

    def panics(**_):
        raise raised("range end index 15 out of range")

    monkeypatch.setattr("tokenizers.models.BPE", panics)
    with pytest.raises(expected, match="range end index 15"):
        Tokenizer.from_gguf(small())


def test_a_large_vocabulary_loads_quickly():
    letters = [a + b for a in BYTE_LETTERS for b in BYTE_LETTERS]
    merges = [f"{a} {b}" for a in BYTE_LETTERS for b in BYTE_LETTERS]
    longer = [pair + letter for pair in letters for letter in "abc"][: 247_587 - len(letters)]
    merges += [f"{text[:-1]} {text[-1]}" for text in longer]
    tokens = [*BYTE_LETTERS, *letters, *longer, "<|endoftext|>"]
    tokens += [f"[PAD{i}]" for i in range(248_320 - len(tokens))]
    types = [5 if text.startswith("[PAD") else 1 for text in tokens]
    started = time.thread_time()
    tokenizer = Tokenizer.from_gguf(spoiled(tokens=tokens, merges=merges, token_type=types, eos_token_id=0))
    seconds = time.thread_time() - started
    assert tokenizer.n_vocab == 248_320
    assert tokenizer.decode(tokenizer.encode("abcabc")) == "abcabc"
    assert seconds < 10, "of CPU time of this thread; 0.9 are typical"


def test_imports_are_lazy():
    names = ("tokenizer", "detokenizer", "chat_template")
    code = f"import {', '.join(f'dflash.model.text.{name}' for name in names)}, sys; print(*sys.modules)"
    assert not {"tokenizers", "jinja2"} & set(run_python("-c", code, cwd=DATA.parents[1]).stdout.split())


def test_the_demo_file_has_this_tokenizer():
    path = DATA.parent.parent / "dflash" / "data" / "demo-Q4_K_M.gguf"
    metadata, made = dict(GGUFFile.open(path).metadata), demo_metadata()
    types = [data.pop("tokenizer.ggml.token_type") for data in (metadata, made)]
    assert {key: metadata[key] for key in made} == made
    # The converter treats any token of the form <|this|> as a control token, whatever tokenizer.json says.
    differ = [made["tokenizer.ggml.tokens"][token] for token in np.flatnonzero(types[0] != types[1])]
    assert differ == ["<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"]
