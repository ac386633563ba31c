"""A compiler that is not deterministic is judged by its best compilation, and no bad verdict outlives a test."""

import nvrtc
import pytest
from nvrtc import compiled

SOURCE = "copy/copy.cu"
PTX = "\tadd.rn.f32 %f1, %f2, %f3;"


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """A compiler that spills the numbers of bytes of a list, then none; returns the list and the count of its calls."""
    spills, calls = [], []

    def compile_cubin(library, text, arch, options):
        calls.append(arch)
        spilled = spills.pop(0) if spills else 0
        return b"\x7fELF", f"0 bytes stack frame, {spilled} bytes spill stores, {spilled} bytes spill loads", PTX

    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(nvrtc, "compile_cubin", compile_cubin)
    monkeypatch.setattr(nvrtc, "version", lambda: (13, 5))
    monkeypatch.setattr(nvrtc, "_compiler", lambda: "a compiler")
    return spills, calls


@pytest.mark.parametrize("bad", [[52], [52, 8]], ids=str)
def test_one_bad_compilation_condemns_no_source(compiler, bad):
    spills, calls = compiler
    spills += bad
    times = len(bad) + 1
    assert compiled(SOURCE) == 0
    assert len(calls) == times
    assert compiled(SOURCE) == 0
    assert len(calls) == times, "a good verdict is cached"


def test_the_last_compilation_is_with_few_registers(compiler, monkeypatch):
    """NVRTC 13.1 always spills 8 bytes of a source for one GPU, but not if it holds fewer values at a time."""
    given = []

    def compile_cubin(library, text, arch, options):
        given.append(options)
        spilled = 0 if "-DFEW_REGISTERS" in options else 4
        return b"\x7fELF", f"{spilled} bytes spill stores, {spilled} bytes spill loads", PTX

    monkeypatch.setattr(nvrtc, "compile_cubin", compile_cubin)
    assert compiled(SOURCE) == 0
    assert [options[len(given[0]) :] for options in given] == [(), (), ("-DFEW_REGISTERS",)]


def test_spills_of_every_compilation_are_reported_and_forgotten(compiler):
    spills, calls = compiler
    spills += [52, 8, 16]
    assert compiled(SOURCE) == 8 + 8, "stores and loads"
    assert compiled(SOURCE) == 0
    assert len(calls) == 4


def test_another_version_of_the_compiler_is_not_judged(compiler, monkeypatch):
    spills, _ = compiler
    monkeypatch.setattr(nvrtc, "version", lambda: (99, 0))
    assert compiled(SOURCE) == 0
    spills += [52, 52, 52]
    with pytest.raises(
        pytest.skip.Exception, match=r"99, 0\) is not among those that are judged; it spills 104 bytes of copy"
    ):
        compiled(SOURCE, 80)


def test_an_operation_that_ptxas_may_join_is_refused(compiler, monkeypatch):
    assert compiled(SOURCE) == 0
    monkeypatch.setitem(globals(), "PTX", "\tadd.f32 %f1, %f2, %f3;")
    for _ in range(2):
        with pytest.raises(AssertionError, match=r"may contract \['add\.f32'\]"):
            compiled(SOURCE, 80)
    monkeypatch.setattr(nvrtc, "version", lambda: (99, 0))
    with pytest.raises(pytest.skip.Exception, match=r"99, 0\) is not among those that are judged; ptxas may contract"):
        compiled(SOURCE, 80)
