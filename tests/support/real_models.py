"""Published models and what Transformers computes from them, in the folder that ``DFLASH_REAL`` names."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

FILES = {
    "smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "coder": "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
}
"""The file of each model; its references are in the archive ``MODEL.npz`` beside it."""

DEVICE = os.environ.get("DFLASH_REAL_DEVICE", "cpu")
"""Device of the tests, ``cpu`` or ``cuda``."""

THREADS = int(os.environ.get("DFLASH_REAL_THREADS", "2"))
NEAR = 0.05
"""Difference of the two largest logits below which implementations may choose either token."""


def path_of(name):
    """Path of a model's file; the test is skipped where there is none."""
    folder = os.environ.get("DFLASH_REAL")
    if not folder:
        pytest.skip("DFLASH_REAL names no folder with published models")
    path = Path(folder) / FILES[name]
    if not path.is_file():
        pytest.skip(f"{path} is missing")
    return path


def references_of(name):
    """Recorded results of a model: arrays, and prompts with their number."""
    path = path_of(name).with_name(f"{name}.npz")
    if not path.is_file():
        pytest.skip(f"{path} is missing")
    found = np.load(path)
    numbers = sorted(int(key.removesuffix(".prompt_ids")) for key in found.files if key.endswith(".prompt_ids"))
    return found, dict(zip(numbers, json.loads(bytes(found["prompts"])), strict=True))
