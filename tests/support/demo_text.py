"""Recorded data of the demo model: prompts with greedy outputs, and its tokenizer without its weights."""

import json
import lzma
from functools import cache
from pathlib import Path

import numpy as np

from dflash.model.text.tokenizer import Tokenizer

DATA = Path(__file__).parents[1] / "data"


def _text(name):
    return lzma.decompress((DATA / "demo" / name).read_bytes()).decode()


def recorded_prompts():
    """Return the prompts with their greedy outputs on the packaged file, and the margins of these."""
    return json.loads(_text("q4_k_m.json.xz"))["prompts"]


def greedy_prompts():
    """Return the prompts with their greedy outputs on the weights before quantization, and the margins of these."""
    return json.loads(_text("greedy.json.xz"))["prompts"]


def recorded_acceptance():
    """Return the accepted lengths of steps on the same prompts."""
    return json.loads(_text("acceptance.json.xz"))


def demo_metadata():
    """Return fresh metadata, which a test may spoil."""
    texts, types, merges = _parts()
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen35",
        "tokenizer.ggml.tokens": list(texts),
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.eos_token_id": texts.index("<|im_end|>"),
        "tokenizer.ggml.padding_token_id": texts.index("<|endoftext|>"),
        "tokenizer.ggml.add_bos_token": False,
    }


@cache
def demo_tokenizer():
    return Tokenizer.from_gguf(demo_metadata())


@cache
def tokenizer_json():
    """The demo's tokenizer as Hugging Face `tokenizers` stores it."""
    return _text("tokenizer.json.xz")


@cache
def _parts():
    data = json.loads(tokenizer_json())
    vocab, added = data["model"]["vocab"], data["added_tokens"]
    texts, types = [""] * (len(vocab) + len(added)), [1] * (len(vocab) + len(added))
    for text, token in vocab.items():
        texts[token] = text
    for token in added:
        texts[token["id"]], types[token["id"]] = token["content"], 3 if token["special"] else 4
    return texts, types, [" ".join(merge) for merge in data["model"]["merges"]]
