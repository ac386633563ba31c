"""Texts that a model wrote, with the hidden states that drafts read. Needs no torch.

A draft is trained on the model's own outputs, since those are the tokens that it will have to predict.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import dflash
from dflash.decode.sampling.params import Sampling
from dflash.generation.completion import Completion
from dflash.generation.stream import finish_all
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
"""Beginnings of texts: Python, which the demo writes best. `train_draft.prompts` has more."""

AT_ONCE = 8
"""Most texts that are read in one forward."""

MOST = float(np.finfo(np.float16).max)

TEMPERATURES = 0.0, 0.7, 1.0
"""Of the rounds of `write_until`, in turn: a draft should know the texts of greedy and of sampled requests."""


class Written(NamedTuple):
    """Token ids of a text, and the number of those at its beginning that the model did not write."""

    tokens: Sequence[int]
    prompt: int


class Text(NamedTuple):
    """A text and the hidden states of the model that wrote it.

    Parameters
    ----------
    tokens : int32 (T,)
    features : float16 (T, F, D)
        Outputs of the captured layers, at each position.
    hidden : float16 (T, D)
        Output of the last norm: the LM head times row j are the logits of token j + 1.
    prompt : int
        Tokens that the model did not write. A draft need not predict them.
    """

    tokens: NDArray[np.int32]
    features: NDArray[np.float16]
    hidden: NDArray[np.float16]
    prompt: int = 0


def write_texts(
    lm: dflash.LM, starts: Sequence[str] = STARTS, *, copies: int = 4, max_tokens: int = 96, seed: int = 0
) -> list[Written]:
    """Return texts that a model continues, `copies` for each start, with other seeds."""
    prompts, texts = [lm.encode(start) for start in starts], []
    for copy in range(copies):
        texts += continued(lm, prompts, max_tokens, seeds=[seed + copy] * len(starts), temperature=0.8, top_p=0.95)
    return texts


def write_until(
    lm: dflash.LM,
    prompts: Iterator[list[int]],
    done: Callable[[int], bool],
    *,
    at_once: int,
    max_tokens: int = 256,
    seed: int = 0,
) -> list[Written]:
    """Return texts that a model writes in rounds of `at_once` prompts, until ``done(number of texts)``; no text twice."""
    texts: dict[tuple[int, ...], Written] = {}
    n, turn = 0, 0
    while not done(n):
        seeds = range(seed + n, seed + n + at_once)
        some = [next(prompts) for _ in seeds]
        temperature = TEMPERATURES[turn % len(TEMPERATURES)]
        for text in continued(lm, some, max_tokens, seeds=seeds, temperature=temperature):
            texts.setdefault(tuple(text.tokens), text)
        n, turn = n + at_once, turn + 1
    return list(texts.values())


def continued(
    lm: dflash.LM, prompts: Sequence[list[int]], max_tokens: int, *, seeds: Sequence[int], **sampling: Any
) -> list[Written]:
    """Return the continuations of prompts up to an end token; each prompt has its own seed, so that equal ones differ."""
    given = [
        Completion(lm.tokenizer, ids, sampling=Sampling(seed=seed, **sampling), max_tokens=max_tokens)
        for ids, seed in zip(prompts, seeds, strict=True)
    ]
    done = finish_all(lm._engine_thread, given)  # `lm.generate` has one seed for all prompts
    return [Written(ids + one.tokens, len(ids)) for ids, one in zip(prompts, done, strict=True)]


def save_texts(path: Path, texts: Sequence[Written]) -> None:
    """Write texts to a file of NumPy arrays."""
    lengths, prompts = ([len(text.tokens) for text in texts], [text.prompt for text in texts])
    tokens = np.concatenate([np.asarray(text.tokens, np.int32) for text in texts])
    np.savez_compressed(path, tokens=tokens, lengths=lengths, prompts=prompts)


def load_texts(path: Path) -> list[Written]:
    """Read the texts of `save_texts`."""
    with np.load(path) as file:
        parts = np.split(file["tokens"], np.cumsum(file["lengths"])[:-1])
        return [Written(tokens.tolist(), int(prompt)) for tokens, prompt in zip(parts, file["prompts"], strict=True)]


def record(lm: dflash.LM, texts: Iterable[Written], layers: tuple[int, ...]) -> list[Text]:
    """Read texts with the model, and return them with the outputs of `layers` and of the last norm."""
    found: list[Text] = []
    for batch in _batches(texts, lm.model.prefill_chunk, min(AT_ONCE, lm.model.pools.free_slots)):
        found += lm.call(lambda batch=batch: _read(lm.model, batch, layers))
    return found


def _batches(texts: Iterable[Written], rows: int, most: int) -> Iterator[list[Written]]:
    """Yield at most `most` texts that fit a forward of `rows` rows together; a longer text comes alone."""
    batch: list[Written] = []
    for text in texts:
        if batch and (len(batch) == most or sum(len(each.tokens) for each in [*batch, text]) > rows):
            yield batch
            batch = []
        batch.append(text)
    if batch:
        yield batch


def _read(model: Any, texts: Sequence[Written], layers: tuple[int, ...]) -> list[Text]:
    longest, parts = max(len(text.tokens) for text in texts), []
    with ExitStack() as stack:
        states = [stack.enter_context(closing(model.state())) for _ in texts]
        for start in range(0, longest, model.prefill_chunk):
            rows = [np.asarray(text.tokens[start : start + model.prefill_chunk], np.int32) for text in texts]
            for state, tokens in zip(states, rows, strict=True):
                state.reserve(len(tokens))
            spans = [Span.chain(state, part, prefill=True, logits=False) for state, part in zip(states, rows, strict=True)]
            out = model.forward(spans, capture=layers)
            model.finish()
            parts.append([_host(array) for array in (*(out.captured[layer] for layer in layers), out.hidden)])
    *captured, hidden = (np.concatenate(array) for array in zip(*parts, strict=True))
    ends = np.cumsum([len(text.tokens) for text in texts])
    stacked = np.stack(captured, 1) if captured else np.empty((len(hidden), 0, hidden.shape[1]), np.float16)
    features, arrays = np.split(stacked[: ends[-1]], ends[:-1]), np.split(hidden[: ends[-1]], ends[:-1])
    return [
        Text(np.asarray(text.tokens, np.int32), *own, text.prompt)
        for text, *own in zip(texts, features, arrays, strict=True)
    ]


def _host(rows: Any) -> NDArray[np.float16]:
    """Return an array of the host, clipped to halves, since first tokens have huge features in some models."""
    halves = rows.clip(-MOST, MOST).astype(np.float16)  # of a model on a GPU: an array of the device
    return halves.get() if hasattr(halves, "get") else halves


def tables(lm: dflash.LM) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the embedding and the LM head of a model, float32 (V, D) each; they may be one array."""

    def unpack() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        weights: Any = lm.model.weights
        weights = getattr(weights, "host", weights)
        embedding = weights.matrix("token_embd.weight").unpacked()
        return embedding, embedding if lm.model.config.tied else weights.matrix("output.weight").unpacked()

    return lm.call(unpack)
