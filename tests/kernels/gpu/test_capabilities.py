"""Capabilities of GPUs, and of the targets of ``DFLASH_TARGET`` on a newer one; no GPU is needed."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import dflash
from dflash.errors import KernelError
from dflash.kernels.gpu.capabilities import SHARED, VARIABLE, capabilities, code_for, rules

SUPPORTED = 75, 80, 86, 89, 90, 100, 120
H200 = 90, 132, (228 << 10, 227 << 10), SUPPORTED


def test_code_for_the_gpu_itself():
    assert code_for(90, (75, 80, 90, 100)) == "sm_90a"
    assert code_for(89, (75, 80, 86, 89, 90)) == "sm_89"
    assert code_for(103, (90, 100)) == "sm_100"
    assert code_for(130, (90, 100, 121)) == "compute_121"
    with pytest.raises(KernelError, match="75 and newer; the GPU has 70"):
        code_for(70, (75, 80))


def test_without_a_target_a_gpu_keeps_what_it_has():
    about = rules(*H200)
    assert about == ("sm_90", "sm_90a", 132, 228 << 10, 227 << 10, True, True, True)
    assert rules(80, 108, (164 << 10, 163 << 10), SUPPORTED) == (
        "sm_80",
        "sm_80",
        108,
        164 << 10,
        163 << 10,
        False,
        False,
        False,
    )
    assert rules(120, 170, (100 << 10, 99 << 10), SUPPORTED)[5:] == (False, True, True)


@pytest.mark.parametrize(
    ("target", "code", "kib", "newer"),
    [
        ("sm_80", "compute_80", 163, False),
        ("sm_86", "compute_86", 99, False),
        ("sm_89", "compute_89", 99, False),
        ("sm_100", "sm_90", 227, True),
        ("sm_120", "sm_90", 99, True),
    ],
)
def test_targets_on_hopper(target, code, kib, newer):
    about = rules(*H200, target)
    assert (about.name, about.code, about.processors) == (target, code, 132)
    assert (about.block_shared, about.processor_shared) == (kib << 10, kib + 1 << 10)
    assert (about.has_wgmma, about.has_clusters, about.has_dependent_launches) == (False, newer, newer)


def test_the_target_of_the_gpu_itself_changes_nothing():
    assert rules(*H200, "sm_90") == rules(*H200)


def test_a_target_has_no_more_shared_memory_than_the_gpu():
    about = rules(89, 128, (100 << 10, 99 << 10), SUPPORTED, "sm_80")
    assert (about.code, about.block_shared) == ("sm_80", 99 << 10)


def test_refuses_what_is_no_target_or_cannot_run():
    with pytest.raises(KernelError, match="DFLASH_TARGET: 'sm_85' is no target, use one of sm_80, sm_86, sm_89, sm_90"):
        rules(*H200, "sm_85")
    with pytest.raises(KernelError, match=r"sm_120 needs a GPU of 9.0 or newer, this has 8.6: use sm_80, sm_86$"):
        rules(86, 82, (100 << 10, 99 << 10), SUPPORTED, "sm_120")


def test_the_variable_is_read_at_each_request(monkeypatch):
    cupy = pytest.importorskip("cupy")
    names = "MaxSharedMemoryPerMultiprocessor", "MaxSharedMemoryPerBlockOptin", "MultiProcessorCount"
    attributes = dict(zip(names, (228 << 10, 227 << 10, 132), strict=True))
    found = SimpleNamespace(id=91, compute_capability="90", attributes=attributes)
    monkeypatch.setattr(cupy.cuda, "Device", lambda *_: found)
    monkeypatch.delenv(VARIABLE, raising=False)
    assert capabilities().code == "sm_90a"
    monkeypatch.setenv(VARIABLE, "sm_86")
    assert capabilities() == rules(*H200, "sm_86")


def test_nothing_else_reads_what_a_gpu_can():
    """A rule that asked the GPU itself would not follow the target."""
    asks = re.compile(r"compute_capability|MaxSharedMemory|MultiProcessorCount|getSupportedArchs|multiProcessorCount")
    package = Path(dflash.__file__).parent
    found = {path.relative_to(package).as_posix() for path in package.rglob("*.py") if asks.search(path.read_text("utf-8"))}
    assert found - {"kernels/gpu/device.py"} == {"kernels/gpu/capabilities.py"}


def test_limits_by_capability():
    assert {block for _, block in SHARED.values()} == {99, 163, 227}
    assert all(processor == block + 1 for processor, block in SHARED.values())
