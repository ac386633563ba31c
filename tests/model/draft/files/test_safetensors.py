"""Damaged safetensors files."""

import math
import random

import numpy as np
import pytest
from drafts import safetensors

from dflash.errors import DFlashError, FormatError
from dflash.model.draft.files.safetensors import SIZES, SafeTensors


def test_damaged_files_are_refused(tmp_path):
    sound = safetensors({"a": ("F32", np.ones((3, 4), np.float32)), "b": ("I64", np.arange(5))})
    rng, path, opened = random.Random(5), tmp_path / "x.safetensors", 0
    path.write_bytes(sound)
    assert set(SafeTensors.open(path).tensors) == {"a", "b"}
    for i in range(600):
        damaged = bytearray(sound[: rng.randrange(len(sound))] if i % 3 == 0 else sound)
        for _ in range(rng.randint(0 if i % 3 == 0 else 1, 3)):
            if damaged:
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path = tmp_path / f"{i}.safetensors"
        path.write_bytes(damaged)
        try:
            tensors = SafeTensors.open(path).tensors
        except DFlashError:
            continue
        opened += 1
        for entry in tensors.values():
            assert entry.data.nbytes == math.prod(entry.shape) * SIZES[entry.type]
    assert opened < 450


@pytest.mark.parametrize(
    "header",
    [
        "[]",
        "{",
        '{"a": 1}',
        '{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 8]}}',
        '{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}',
        '{"a": {"dtype": "F32", "shape": [true], "data_offsets": [0, 4]}}',
        '{"a": {"dtype": "F8", "shape": [4], "data_offsets": [0, 4]}}',
        '{"a": {"dtype": "F32", "shape": [100], "data_offsets": [0, 400]}}',
        '{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}',
        '{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}',
        '{"a": {}, "a": {}}',
        "[" * 100000,
    ],
    ids=lambda header: header[:50],
)
def test_headers_that_lie(tmp_path, header):
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(16))
    with pytest.raises(FormatError, match=r"x\.safetensors"):
        SafeTensors.open(path)
