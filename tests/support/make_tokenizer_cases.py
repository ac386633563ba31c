"""Make small vocabularies and the ids that `sentencepiece` and `tiktoken` give to hostile texts with them.

Run ``python tests/support/make_tokenizer_cases.py`` with both packages installed; it writes ``tests/data/tokenizers``.
"""

import io
import json
import random
from pathlib import Path

import sentencepiece
import tiktoken
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "tokenizers"
CORPUS = [
    *(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))[:12]),
    "Die Häuser der Straße. L'été, c'est ÉTÉ! 日本語のテキスト 日本 привет Привет मित्र 12345 67890 2024 DON'T I'll WE'VE\n"
    * 40,
]
PATTERNS = {  # as published with the tokenizers of Llama 3 and of Mistral NeMo
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+",
    "tekken": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}"
    r"\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
}
LETTERS = (
    "aeinrstdhAEÉéß日本語привет मित्र\u0301\u200d\ufeff\u00a0\u2028"
    " \t\r\n  .,:;'\"!?/_=-()[]{}<>0123456789½٣\u2581\u0000😀👩\u200d💻"
)


def texts():
    """Return texts with mixed scripts, runs of spaces, digits and broken-up emoji, and parts of the corpus."""
    rng = random.Random(7)
    found = [
        "",
        " ",
        "  a",
        "don't DON'T I'LL",
        "1234567 2024",
        "a\n\n\n b\r\n",
        "x//y\n/z",
        "\u2581a",
        "HTTPServer getHTTP",
        "ＡＢ",
    ]
    found += ["".join(rng.choices(LETTERS, k=rng.randint(3, 24))) for _ in range(60)]
    words = " ".join(CORPUS).split(" ")
    return found + [" ".join(words[at : at + 4]) for at in (rng.randrange(len(words) - 4) for _ in range(15))]


def byte_level():
    """Return merges that cross the borders of pieces, and the ids of tiktoken by pattern."""
    letters = list(models_alphabet())
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split("\n\n", "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    trainer = trainers.BpeTrainer(vocab_size=800, initial_alphabet=letters, max_token_length=8, show_progress=False)
    bpe.train_from_iterator([part for text in CORPUS for part in text.split("\n")], trainer)
    merges = [tuple(merge) for merge in json.loads(bpe.to_str())["model"]["merges"]]
    byte_of = {letter: byte for byte, letter in enumerate(letters)}
    ranks = {bytes([byte]): byte for byte in range(256)}
    kept = []
    for pair in merges:
        token = bytes(byte_of[letter] for letter in "".join(pair))
        if token not in ranks:
            ranks[token] = len(ranks)
            kept.append(" ".join(pair))
    cases = texts()
    ids = {
        name: [
            tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={}).encode(text) for text in cases
        ]
        for name, pattern in PATTERNS.items()
    }
    return {"merges": kept, "ids": ids}


def models_alphabet():
    """Return the character of each byte in GPT-2's alphabet, in the order of the bytes."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = iter(range(0x100, 0x200))
    return [chr(byte) if byte in shown else chr(next(rest)) for byte in range(256)]


def pieces():
    """Return a SentencePiece vocabulary in the form of GGUF, and the ids and texts of `sentencepiece`."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for text in CORPUS for line in text.split("\n") if line]),
        model_writer=model,
        model_type="bpe",
        vocab_size=700,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        split_digits=True,
        minloglevel=2,
    )
    known = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    n = known.get_piece_size()
    kinds = ((known.is_unknown, 2), (known.is_control, 3), (known.is_byte, 6))
    types = [next((kind for test, kind in kinds if test(i)), 1) for i in range(n)]
    return {
        "tokens": [known.id_to_piece(i) for i in range(n)],
        "scores": [known.get_score(i) for i in range(n)],
        "types": types,
        "ids": [known.encode(text) for text in texts()],
    }


if __name__ == "__main__":
    DATA.mkdir(exist_ok=True)
    for name, made in (("texts", texts()), ("byte_level", byte_level()), ("sentencepiece", pieces())):
        text = json.dumps(made, ensure_ascii=False, separators=(",", ":"))
        (DATA / f"{name}.json").write_text(text + "\n", encoding="utf-8")
