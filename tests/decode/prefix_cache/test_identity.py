"""The identity of saved states names all that determines their bits, and nothing else."""

from types import SimpleNamespace

import pytest

from dflash.decode.prefix_cache.disk import identity
from dflash.model.describe import describe
from dflash.model.numerics import Numerics

GPU = {"kind": "cuda", "processor": "NVIDIA H100", "memory": 80 << 30, "bandwidth": 3 << 40, "architecture": "sm_90"}
GPU |= {"target": "sm_90", "compiler": "NVRTC 13.5", "driver": "13.0", "processors": 132}


def identity_on(monkeypatch, place):
    """Return the identity of the states of a model on a described device."""
    monkeypatch.setattr(identity, "describe", lambda device: place)
    monkeypatch.setattr(identity, "numerics_of", lambda model: Numerics(kv="f16"))
    model = SimpleNamespace(device=place["kind"], chunk_alignment=64, pools=SimpleNamespace(layout=""))
    return identity.identity_of(SimpleNamespace(model=model, file=SimpleNamespace(fingerprint=lambda: "w")))


@pytest.mark.parametrize(
    "other",
    [
        {"compiler": "NVRTC 13.4"},
        {"target": "sm_86"},
        {"architecture": "sm_89"},
        {"processors": 114},
        {"processor": "NVIDIA H200"},
    ],
    ids=str,
)
def test_another_computation_has_another_identity(monkeypatch, other):
    assert identity_on(monkeypatch, GPU | other) != identity_on(monkeypatch, GPU)


def test_an_update_of_the_driver_keeps_states(monkeypatch):
    assert identity_on(monkeypatch, GPU | {"driver": "13.1", "memory": 94 << 30}) == identity_on(monkeypatch, GPU)


def test_another_compiler_of_the_cpu_kernels_has_another_identity(monkeypatch):
    here = describe("cpu")
    assert "numba" in here["compiler"]
    assert "llvmlite" in here["compiler"]
    assert identity_on(monkeypatch, here | {"compiler": "numba 1.0"}) != identity_on(monkeypatch, here)
    assert identity_on(monkeypatch, here | {"threads": 99}) == identity_on(monkeypatch, here)
