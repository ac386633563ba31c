"""The cache of CUDA code, with a fake compiler and driver: a bad file is recompiled once."""

import contextlib
import hashlib
import sys
import tempfile
from types import ModuleType, SimpleNamespace

import pytest

from dflash.kernels.gpu import cubin, jit

SOURCE = 'extern "C" __global__ void scale(float* x) {}\n'


class DriverError(RuntimeError):
    """Error of the driver for a module that can't be loaded."""

    def __init__(self, status):
        super().__init__(f"result {status}")
        self.status = status


class Device:
    """Fake compiler and driver that counts calls and loads only its own output."""

    def __init__(self):
        self.compiled, self.loaded, self.refused, self.status = 0, [], set(), 200
        self.spills = []  # bytes of the next compilations; later ones have none

    def compile(self, text, name, options, *, ptx):
        self.compiled += 1
        spilled = self.spills.pop(0) if self.spills else 0
        code = hashlib.sha512("".join((text, name, *options)).encode()).digest() * 5 + b"%d bytes" % spilled
        return b"\x7fELF" + code, f"    {spilled} bytes stack frame, {spilled} bytes spill stores, 0 bytes spill loads"

    def load(self, code):
        if not code.startswith(b"\x7fELF") or code in self.refused:
            raise DriverError(self.status)
        self.loaded.append(code)


@pytest.fixture
def device(tmp_path, monkeypatch):
    device = Device()
    parts = {
        "nvrtc": SimpleNamespace(getVersion=lambda: (13, 0)),
        "driver": SimpleNamespace(CUDADriverError=DriverError),
        "function": SimpleNamespace(Module=lambda: SimpleNamespace(load=device.load)),
        "Device": lambda number: contextlib.nullcontext(),
    }
    cupy, cuda = ModuleType("cupy"), ModuleType("cupy.cuda")
    vars(cuda).update(parts)
    cupy.cuda = cuda
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    monkeypatch.setattr(cubin, "_compile", device.compile)
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "cupy"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return device


@pytest.fixture
def entry(tmp_path, device):
    """Return the only file of a cache."""
    compile_once()
    assert device.compiled == 1
    [path] = (tmp_path / "cupy" / "dflash" / "cubins").iterdir()
    return path


def compile_once():
    """Compile the source with a new cache object, as a newly started process would."""
    cubin.code_cache.cache_clear()
    return cubin.cubin(SOURCE, "scale.cu", ("-DN=3",), "sm_90a")


def load(path):
    """Load a source with `jit` as a newly started process would."""
    cubin.code_cache.cache_clear()
    jit._module.cache_clear()
    _, module = jit._module(path, (), 0, "sm_90a")
    return module.result(60)


def test_is_compiled_once(entry, device, caplog):
    assert compile_once() == compile_once()
    assert device.compiled == 1
    assert not caplog.records


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"", lambda data: data[:-1] + b"x"])
def test_a_damaged_file(entry, device, caplog, damage):
    code = compile_once()
    entry.write_bytes(damage(entry.read_bytes()))
    assert compile_once() == code
    assert device.compiled == 2
    assert len(caplog.records) == 1
    assert compile_once() == code
    assert device.compiled == 2
    assert len(caplog.records) == 1


def test_a_module_that_the_driver_refuses_is_compiled_anew(tmp_path, device, caplog):
    path = tmp_path / "scale.cu"
    path.write_text(SOURCE)
    load(path)
    [entry] = (tmp_path / "cupy" / "dflash" / "cubins").iterdir()
    good = entry.read_bytes()
    cubin.CodeCache(entry.parent).put(entry.name, b"no machine code")
    load(path)
    assert device.compiled == 2
    assert len(set(device.loaded)) == 1
    assert entry.read_bytes() == good
    assert len(caplog.records) == 1
    assert "scale.cu can't be loaded" in caplog.text
    load(path)
    assert device.compiled == 2


@pytest.mark.parametrize(("status", "times"), [(200, 2), (218, 2), (999, 2), (2, 1), (201, 1), (700, 1), (719, 1)])
def test_a_module_that_never_loads_is_compiled_anew_once(tmp_path, device, status, times):
    """Code is not recompiled after errors that it can't cause: too little memory (2) or a lost device (700 and up)."""
    path = tmp_path / "scale.cu"
    path.write_text(SOURCE)
    load(path)
    device.refused.update(device.loaded)
    device.status = status
    with pytest.raises(DriverError, match=f"result {status}"):
        load(path)
    assert device.compiled == times


@pytest.mark.parametrize(
    ("spills", "times", "kept"), [([], 1, 0), ([52], 2, 0), ([52, 8], 3, 0), ([52, 8, 16], 3, 8), ([8, 8, 8], 3, 8)]
)
def test_code_that_spills_is_compiled_again(device, spills, times, kept):
    """The best of three compilations is kept; a source that says that it spills is compiled once."""
    device.spills = list(spills)
    code = compile_once()
    assert device.compiled == times
    assert code.endswith(b"%d bytes" % kept)
    assert compile_once() == code
    assert device.compiled == times, "the best one is not in the cache"
    device.spills = [52, 8]
    cubin.cubin(f"#define MAY_SPILL\n{SOURCE}", "scale.cu", (), "sm_90a")
    assert device.compiled == times + 1
