"""Texts that a model wrote, with the hidden states that drafts read. Needs no torch.

A draft is trained on the model's own outputs, since those are the tokens that it will have to predict.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import dflash
from dflash.model.batch import Span

STARTS = (
    "import os\nimport sys\n\n\ndef main(",
    "class Stack:\n    def __init__(self):\n",
    "def fibonacci(n):\n    if n < 2:\n",
    "import json\n\n\ndef load_config(path):\n",
    "def read_lines(path):\n    with open(path",
    "import unittest\n\n\nclass ParserTest(unittest.TestCase):\n",
    "from dataclasses import dataclass\n\n\n@dataclass\nclass Point:\n",
    "def merge_sort(values):\n",
    "import argparse\n\nparser = argparse.ArgumentParser(",
    "for i in range(10):\n    print(",
    "class Account:\n    def __init__(self, owner, balance):\n",
    "import csv\n\n\ndef rows_of(path):\n",
)
"""Beginnings of texts: Python, which the demo writes best. None is a prompt of `dflash.load_prompts`."""


class Text(NamedTuple):
    """A text and the hidden states of the model that wrote it.

    Parameters
    ----------
    tokens : int32 (T,)
    features : float16 (T, F, D)
        Outputs of the captured layers, at each position.
    hidden : float16 (T, D)
        Output of the last norm: the LM head times row j are the logits of token j + 1.
    """

    tokens: NDArray[np.int32]
    features: NDArray[np.float16]
    hidden: NDArray[np.float16]


def write_texts(
    lm: dflash.LM, starts: Sequence[str] = STARTS, *, copies: int = 4, max_tokens: int = 96, seed: int = 0
) -> list[list[int]]:
    """Return token ids of texts that a model continues, prompt included; `copies` for each start, with other seeds."""
    texts = []
    for copy in range(copies):
        prompts = [lm.encode(start) for start in starts]
        settings: dict[str, Any] = {"max_tokens": max_tokens, "temperature": 0.8, "top_p": 0.95, "seed": seed + copy}
        texts += [ids + one.tokens for ids, one in zip(prompts, lm.generate(prompts, **settings), strict=True)]
    return texts


def record(lm: dflash.LM, texts: Iterable[Sequence[int]], layers: tuple[int, ...]) -> list[Text]:
    """Read texts with the model, and return them with the outputs of `layers` and of the last norm."""
    return [lm.call(lambda ids=ids: _read(lm.model, np.asarray(ids, np.int32), layers)) for ids in texts]


def _read(model: Any, tokens: NDArray[np.int32], layers: tuple[int, ...]) -> Text:
    state, features, hidden = model.state(), [], []
    try:
        for start in range(0, len(tokens), model.prefill_chunk):
            part = tokens[start : start + model.prefill_chunk]
            state.reserve(len(part))
            out = model.forward([Span.chain(state, part, prefill=True, logits=False)], capture=layers)
            model.finish()
            captured = [_host(out.captured[layer])[: len(part)] for layer in layers]
            features.append(np.stack(captured, axis=1).astype(np.float16))
            hidden.append(_host(out.hidden)[: len(part)].astype(np.float16))
    finally:
        state.close()
    return Text(tokens, np.concatenate(features), np.concatenate(hidden))


def _host(rows: Any) -> NDArray[np.float32]:
    """Return an array of the host; a model on a GPU returns arrays of the device."""
    return rows.get() if hasattr(rows, "get") else np.array(rows)


def tables(lm: dflash.LM) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the embedding and the LM head of a model, float32 (V, D) each; they may be one array."""

    def unpack() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        weights: Any = lm.model.weights
        weights = getattr(weights, "host", weights)
        embedding = weights.matrix("token_embd.weight").unpacked()
        return embedding, embedding if lm.model.config.tied else weights.matrix("output.weight").unpacked()

    return lm.call(unpack)
