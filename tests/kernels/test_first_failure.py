"""The message of a lost GPU of a split names the GPU that failed first."""

import sys
from types import SimpleNamespace

import pytest

from dflash.errors import DeviceLost
from dflash.kernels.gpu import driver, lost
from dflash.kernels.gpu.device import device_errors

ILLEGAL_ADDRESS, LAUNCH_FAILURE, NOT_READY = 700, 719, 600


class CUDARuntimeError(RuntimeError):
    def __init__(self, status):
        super().__init__(f"error {status}")
        self.status = status


class Runtime:
    """A runtime whose devices have the given states; calls on a device that has failed raise."""

    CUDARuntimeError = CUDARuntimeError

    def __init__(self, *codes):
        self.codes, self.current = codes, 0

    def getDevice(self):  # noqa: N802
        return self.current

    def setDevice(self, number):  # noqa: N802
        self.current = number
        if self.codes[number] != NOT_READY and self.codes[number]:
            raise CUDARuntimeError(self.codes[number])

    def streamQuery(self, stream):  # noqa: N802
        return self.codes[self.current]


@pytest.fixture
def devices(monkeypatch):
    """Makes a process with a split over devices in the given states; the first one is current."""
    monkeypatch.setattr(lost, "_split", {})

    def use(*codes, split=True):
        runtime = Runtime(*codes)
        memory = SimpleNamespace(OutOfMemoryError=MemoryError)
        of_driver = SimpleNamespace(CUDADriverError=CUDARuntimeError)
        cuda = SimpleNamespace(runtime=runtime, memory=memory, driver=of_driver)
        monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
        if split:
            lost.watch(range(len(codes)))
        return runtime

    return use


@pytest.mark.parametrize(
    ("codes", "first"),
    [
        ((LAUNCH_FAILURE, ILLEGAL_ADDRESS), "cuda:1: error 700"),
        ((ILLEGAL_ADDRESS, LAUNCH_FAILURE), "cuda:0: error 700"),
        ((LAUNCH_FAILURE, NOT_READY, ILLEGAL_ADDRESS), "cuda:2: error 700"),
        ((NOT_READY, ILLEGAL_ADDRESS), "cuda:1: error 700"),
        ((ILLEGAL_ADDRESS, ILLEGAL_ADDRESS), "cuda:0 or cuda:1: error 700"),
        ((LAUNCH_FAILURE, LAUNCH_FAILURE), "cuda:0 or cuda:1: error 719"),
    ],
)
def test_the_gpu_that_did_not_wait_failed_first(devices, codes, first):
    runtime = devices(*codes)
    assert lost.first_failure(LAUNCH_FAILURE) == f"; first failure: {first}"
    assert runtime.current == 0


def test_errors_carry_it(devices, monkeypatch):
    devices(LAUNCH_FAILURE, ILLEGAL_ADDRESS)
    with pytest.raises(Exception, match="sampling: error 719; first failure: cuda:1: error 700"), device_errors("sampling"):
        raise CUDARuntimeError(LAUNCH_FAILURE)
    names = SimpleNamespace(cuGetErrorName=lambda *_: 0, cuGetErrorString=lambda *_: 0)
    monkeypatch.setattr(driver, "library", lambda: names)
    with pytest.raises(DeviceLost, match="decode: CUDA error 719; first failure: cuda:1: error 700"):
        driver.check(LAUNCH_FAILURE, "decode")


def test_one_gpu_or_another_error_adds_nothing(devices):
    devices(LAUNCH_FAILURE, ILLEGAL_ADDRESS, split=False)
    assert lost.first_failure(LAUNCH_FAILURE) == ""
    devices(LAUNCH_FAILURE, ILLEGAL_ADDRESS)
    assert lost.first_failure(2) == ""
