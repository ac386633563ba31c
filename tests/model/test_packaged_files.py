"""The packaged models name their licence, and their weights are those of the recorded texts."""

import hashlib
import tomllib
from pathlib import Path

import pytest

from dflash.model.gguf.file import GGUFFile
from dflash.model.loading.hub import resolve

WEIGHTS = {
    "demo": "13f6c2cb2ce7cc6700774335c87dd52e031f9db7d9a7bb7b12fdf110773187e6",
    "demo-draft": "b4d416448fe48e88969ec011621f1e161a670e07d524073269bd3ae7b93f6e93",
}
"""SHA-256 over the name and the bytes of each tensor, in the order of the file."""


@pytest.mark.parametrize("name", WEIGHTS)
def test_the_weights_are_the_recorded_ones(name):
    digest = hashlib.sha256()
    with GGUFFile.open(resolve(name)) as file:
        for tensor in file.tensors:
            digest.update(tensor.encode() + file.data(tensor).tobytes())
    assert digest.hexdigest() == WEIGHTS[name]


@pytest.mark.parametrize("name", WEIGHTS)
def test_the_licence_is_that_of_the_package(name):
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    with GGUFFile.open(resolve(name)) as file:
        assert file.metadata["general.license"] == project["license"].lower()
