"""Small random models with recorded results, as the tests load them."""

import os
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from dflash.model.batch import Span
from dflash.model.config import Config
from dflash.model.gguf.file import GGUFFile
from dflash.model.model import Model

FOLDER = Path(os.environ.get("DFLASH_GOLDEN") or Path(__file__).parent.parent / "data" / "golden")
"""DFLASH_GOLDEN may name a folder with more of these models than the project carries."""

PATHS = {path.stem: path for path in sorted(FOLDER.glob("*/*.gguf"))}
FILES = list(PATHS)
PRIMARY = [name for name in FILES if "prompt.layer0.out" in np.load(PATHS[name].with_suffix(".npz")).files]


def path_of(name):
    return PATHS[name]


def recorded(name):
    return np.load(path_of(name).with_suffix(".npz"))


def truth_of(want):
    """The recorded logits: of all tokens, or of the last ones."""
    return want["logits"] if "logits" in want.files else want["logits_tail"]


@cache
def load(name, kv="f32", threads=1, device="cpu", pending=64, prompts="f16"):
    file = GGUFFile.open(path_of(name))
    config = replace(Config.from_gguf(file.metadata, file.tensors, pending=pending), prefill=prompts)
    if device == "cuda":
        from dflash.model.cuda.model import DeviceModel

        return DeviceModel(file, config, pages=24, slots=12, kv=kv, threads=threads, chunk=1024)
    return Model(file, config, pages=24, slots=12, kv=kv, threads=threads)


def host(array):
    """A NumPy array of its own, wherever the values are."""
    return array.get() if hasattr(array, "get") else np.array(array)


def chain(n):
    return np.arange(-1, n - 1, dtype=np.int32)


def prefill(model, state, tokens, *, chunk=512, logits=True, capture=()):
    """Read a whole text; logits of all its tokens, and what was captured."""
    rows, captured = [], {layer: [] for layer in capture}
    for start in range(0, len(tokens), chunk):
        part = np.asarray(tokens[start : start + chunk], np.int32)
        out = model.forward([Span(state, part, chain(len(part)), prefill=True, logits=logits)], capture=capture)
        rows.append(host(out.logits))
        for layer in capture:
            captured[layer].append(host(out.captured[layer]))
    return np.concatenate(rows), {layer: np.concatenate(parts) for layer, parts in captured.items()}


def tail(model, want):
    """Logits of a recorded text, read at once, and the recorded ones, which may be those of the last tokens."""
    state, truth = model.state(), truth_of(want)
    logits, _ = prefill(model, state, want["tokens"])
    state.close()
    return logits[-len(truth) :], truth


def short_logits(model, want):
    """Logits of a recorded text whose prompt is shorter than the convolution, read token by token after the prompt."""
    state, tokens, n = model.state(), want["short.tokens"], int(want["short.n_prompt"])
    rows = [prefill(model, state, tokens[:n])[0]]
    for token in tokens[n:]:
        rows.append(step(model, state, [token]))
        state.commit([0])
    state.close()
    return np.concatenate(rows)


def step(model, state, tokens, parents=None):
    """Read pending tokens, by default a chain; return their logits."""
    tokens = np.asarray(tokens, np.int32)
    parents = chain(len(tokens)) if parents is None else np.asarray(parents, np.int32)
    return host(model.forward([Span(state, tokens, parents)]).logits)


def assert_greedy(model, want, margin):
    """The recorded tokens win, one at a time, as far as none is as close to its rival as `margin`."""
    state = model.state()
    logits, _ = prefill(model, state, want["tokens"][: int(want["n_prompt"])])
    row = logits[-1]
    for i, (token, its) in enumerate(zip(want["greedy"], want["greedy_margin"], strict=True)):
        if its < margin:
            break
        assert row.argmax() == token, f"token {i}, margin {its}"
        row = step(model, state, [token])[0]
        state.commit([0])
    state.close()
