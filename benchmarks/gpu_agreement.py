"""Difference of a GPU's logits from the float32 CPU implementation, over the first layers of a file of any size.

python benchmarks/gpu_agreement.py FILE [--layers 8]

Runs a prompt, then a chain and a tree of pending rows. Then runs the whole file on the GPU and checks for NaN and infinity.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import cupy
import numpy as np

from dflash.model.batch import Span
from dflash.model.config import Config
from dflash.model.cuda.model import DeviceModel
from dflash.model.gguf.file import GGUFFile
from dflash.model.model import Model
from dflash.model.state.budget import n_cores

PROMPT, PENDING, STEPS = 192, 16, 64
CHAIN = np.arange(-1, PENDING - 1, dtype=np.int32)
TREE = np.array([-1, 0, 1, 2, 3, 4, 5, 6, 0, 0, 1, 1, 8, 9, 2, 3], np.int32)


def run(model, tokens):
    """Return logits (2, 16, V) of a chain and of a tree after a prompt."""
    state = model.state()
    prompt = tokens[:PROMPT]
    model.forward([Span(state, prompt, np.arange(-1, PROMPT - 1, dtype=np.int32), prefill=True, logits=False)])
    found = []
    for parents in (CHAIN, TREE):
        out = model.forward([Span(state, tokens[PROMPT:], parents)])
        found.append(np.array(out.logits))
        state.commit([])
    state.close()
    return np.stack(found)


def finite(model, tokens):
    """Run prefill and decode; return True if every hidden value and logit is finite."""
    state, sound = model.state(), True
    n = len(tokens)
    out = model.forward([Span(state, tokens, np.arange(-1, n - 1, dtype=np.int32), prefill=True)])
    sound &= bool(cupy.isfinite(out.hidden).all())
    for token in tokens[:STEPS]:
        out = model.forward([Span(state, np.array([token], np.int32), np.array([-1], np.int32))])
        sound &= bool(cupy.isfinite(out.hidden).all()) and bool(np.isfinite(np.asarray(out.logits)).all())
        state.commit([0])
    state.close()
    return sound


def main():
    """Print the differences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--layers", type=int, default=8)
    arguments = parser.parse_args()
    file = GGUFFile.open(arguments.file)
    whole = replace(Config.from_gguf(file.metadata, file.tensors), context=4096, n_mtp=0)
    first = replace(whole, n_layers=arguments.layers, recurrent=whole.recurrent[: arguments.layers])
    tokens = np.random.default_rng(0).integers(0, whole.n_vocab, PROMPT + PENDING, dtype=np.int32)
    settings = {"pages": 4, "slots": 2, "kv": "f16", "threads": n_cores()}
    wanted = run(Model(file, first, **settings), tokens)
    got = run(DeviceModel(file, first, **settings), tokens)
    for name, mine, true in zip(("chain", "tree"), got, wanted, strict=True):
        error = np.sqrt(np.mean((mine - true) ** 2) / np.mean(true**2))
        same = (mine.argmax(1) == true.argmax(1)).mean()
        print(f"{arguments.layers} layers, {name}: relative RMS {error:.1e}, same largest logit in {same:.0%} of the rows")
    model = DeviceModel(file, whole, **settings)
    print(f"{whole.n_layers} layers: all finite: {finite(model, tokens)}")


if __name__ == "__main__":
    main()
