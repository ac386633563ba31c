"""Background compilation, the cache on disk, and the packing of launch arguments; no GPU is needed."""

import ctypes
import logging
import tempfile
from concurrent.futures import Future
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from dflash.errors import KernelError
from dflash.kernels.gpu import cubin, driver
from dflash.kernels.gpu.launch import Kernel
from dflash.kernels.gpu.signature import parameters

KERNEL = 'extern "C" __global__ void scale(float* x, int n, float by) { if (threadIdx.x < n) x[threadIdx.x] *= by; }\n'


@pytest.fixture
def cache(tmp_path, monkeypatch):
    pytest.importorskip("cupy")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    return tmp_path / "dflash" / "cubins"


@pytest.fixture
def calls(monkeypatch):
    """A fake driver that records launches."""
    cupy = pytest.importorskip("cupy")
    made = []

    def launch(config, function, arguments, extra):
        config = ctypes.cast(config, ctypes.POINTER(driver.LaunchConfig)).contents
        values = [ctypes.cast(arguments[i], ctypes.POINTER(kind)).contents.value for i, kind in enumerate(KINDS)]
        made.append((list(config.grid), list(config.block), config.shared, config.n_attributes, function.value, values))
        return 0

    allowed = {8: 48 << 10}  # dynamic shared memory

    def allow(function, number, value):
        allowed[number] = value
        made.append((number, value))
        return 0

    def attribute(value, number, function):
        value._obj.value = allowed[number]
        return 0

    library = SimpleNamespace(cuLaunchKernelEx=launch, cuFuncSetAttribute=allow, cuFuncGetAttribute=attribute)
    monkeypatch.setattr(driver, "library", lambda: library)
    monkeypatch.setattr(cupy.cuda, "Device", lambda device: nullcontext())
    return made


KINDS = ctypes.c_uint64, ctypes.c_int32, ctypes.c_float
STREAM = SimpleNamespace(ptr=7)


def ready_kernel(**options):
    module = Future()
    module.set_result(SimpleNamespace(get_function=lambda entry: SimpleNamespace(ptr=42)))
    return Kernel("scale in scale.cu", "scale", parameters(KERNEL, "scale"), module, 0, **options)


def test_a_source_is_compiled_once(cache, monkeypatch):
    made = cubin.cubin(KERNEL, "scale.cu", ("-DN=3",), "sm_90a")
    assert made.startswith(b"\x7fELF")
    assert [path.suffix for path in cache.iterdir()] == [".cubin"]
    assert cubin.cubin(KERNEL, "scale.cu", ("-DN=4",), "sm_90a").startswith(b"\x7fELF")
    assert len(list(cache.iterdir())) == 2
    monkeypatch.setattr(cubin, "_compile", lambda *_, **__: pytest.fail("compiled again"))
    assert cubin.cubin(KERNEL, "scale.cu", ("-DN=3",), "sm_90a") == made


def test_an_empty_file_is_compiled_anew(cache):
    made = cubin.cubin(KERNEL, "scale.cu", (), "sm_80")
    whole = next(cache.iterdir()).read_bytes()
    assert whole.startswith(made)
    next(cache.iterdir()).write_bytes(b"")
    assert cubin.cubin(KERNEL, "scale.cu", (), "sm_80") == made
    assert next(cache.iterdir()).read_bytes() == whole


def test_makes_ptx_for_what_is_newer_than_the_compiler(cache):
    assert b".target sm_90" in cubin.cubin(KERNEL, "scale.cu", (), "compute_90")


@pytest.mark.parametrize(
    ("driver", "stated", "read"),
    [(13000, "9.2", "9.0"), (13020, "9.2", "9.2"), (13030, "9.2", "9.2"), (12040, "9.2", "8.4"), (12090, "8.4", "8.4")],
)
def test_ptx_states_a_version_that_the_driver_reads(driver, stated, read):
    code = "//\n.version {}\n.target sm_86\n"
    assert cubin.ptx_for(driver, code.format(stated).encode()) == code.format(read).encode()


def test_an_error_names_file_and_line(cache):
    with pytest.raises(KernelError, match=r"-DN=3 does not compile:\nscale\.cu\(2\): error") as info:
        cubin.cubin(KERNEL + "int wrong = nothing;\n", "scale.cu", ("-DN=3",), "sm_90a")
    assert "nothing" in str(info.value)
    assert not cache.exists()


def test_a_folder_that_takes_no_files_is_logged_once(cache, tmp_path, caplog):
    cache.parent.write_text("in the way")
    (tmp_path / "tmp").rmdir()
    (tmp_path / "tmp").write_text("in the way, too")
    with caplog.at_level(logging.WARNING):
        for n in range(2):
            assert cubin.cubin(KERNEL, "scale.cu", (f"-DN={n}",), "sm_90a").startswith(b"\x7fELF")
    assert caplog.text.count("compiled anew in every process") == 1


def test_the_driver_reads_these_structures():
    assert ctypes.sizeof(driver.LaunchConfig) == 56
    assert ctypes.sizeof(driver._Attribute) == 72
    assert ctypes.sizeof(driver.TensorMap) == 128


def test_launches_what_was_bound(calls):
    bound = ready_kernel().bind((2, 3), 64, (None, 5, 0.5), shared=100)
    bound(STREAM)
    bound(STREAM, grid=9, n=6)
    assert calls == [([2, 3, 1], [64, 1, 1], 100, 0, 42, [0, 5, 0.5]), ([9, 1, 1], [64, 1, 1], 100, 0, 42, [0, 6, 0.5])]


def test_attributes_are_set_where_they_are_asked_for(calls):
    ready_kernel(dependent=True)(1, 32, (None, 1, 1), shared=64 * 1024, stream=STREAM)
    assert calls == [(8, 64 * 1024), ([1, 1, 1], [32, 1, 1], 64 * 1024, 1, 42, [0, 1, 1.0])]


def test_a_function_keeps_the_shared_memory_that_another_kernel_needs(calls):
    """Kernels of two targets may share a function."""
    for shared in (128 * 1024, 64 * 1024):
        ready_kernel()(1, 32, (None, 1, 1), shared=shared, stream=STREAM)
    assert [call for call in calls if len(call) == 2] == [(8, 128 * 1024)]


def test_shared_memory_beyond_the_target(calls, monkeypatch):
    monkeypatch.setattr(driver, "static_shared", lambda function: 1024)
    ready_kernel(most_shared=99 << 10)(1, 32, (None, 1, 1), shared=98 << 10, stream=STREAM)
    assert calls[0] == (8, 98 << 10)
    with pytest.raises(KernelError, match=r"scale\.cu: 101377 bytes of shared memory of a block, the target has 101376"):
        ready_kernel(most_shared=99 << 10)(1, 32, (None, 1, 1), shared=(98 << 10) + 1, stream=STREAM)


def test_refuses_arguments_that_do_not_fit(calls):
    with pytest.raises(KernelError, match=r"scale in scale\.cu: takes 3 arguments, got 2"):
        ready_kernel().bind(1, 32, (None, 1))
    with pytest.raises(KernelError, match=r"scale in scale\.cu: x is a device array of float32, got ndarray"):
        ready_kernel().bind(1, 32, (np.zeros(3, np.float32), 1, 1))
