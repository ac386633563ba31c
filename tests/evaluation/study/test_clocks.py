"""Clocks, power and temperature of a GPU, read from a stand-in for NVML."""

import ctypes

import pytest

from dflash.evaluation.study.runners import clocks as module

BUS_ID = "0000:1B:00.0"
ANSWERS = {("nvmlDeviceGetClockInfo", 1): 1965, ("nvmlDeviceGetClockInfo", 2): 3201, ("nvmlDeviceGetMaxClockInfo", 1): 1980}


class Library:
    """Knows one GPU, its clocks and its power; it does not support temperatures."""

    def nvmlDeviceGetHandleByPciBusId_v2(self, name, handle):  # noqa: N802
        handle._obj.value = 7
        return 0 if name == BUS_ID.encode() else 6

    def __getattr__(self, function):
        def call(handle, *arguments):
            assert handle.value == 7
            *kinds, found = arguments
            if "Power" in function:
                found._obj.value = 698_500
                return 0
            found._obj.value = ANSWERS.get((function, *kinds), 0)
            return 0 if (function, *kinds) in ANSWERS else 3

        return call


@pytest.fixture
def library(monkeypatch):
    """The stand-in in place of the driver's."""
    monkeypatch.setattr(module, "_library", Library)


@pytest.mark.usefixtures("library")
def test_numbers_have_the_units_of_their_names():
    assert module.gpu_clocks(BUS_ID) == {
        "sm_mhz": 1965,
        "sm_max_mhz": 1980,
        "memory_mhz": 3201,
        "power_watts": pytest.approx(698.5),
        "power_limit_watts": pytest.approx(698.5),
    }


@pytest.mark.usefixtures("library")
def test_an_unknown_gpu_has_no_clocks():
    assert module.gpu_clocks("0000:FF:00.0") is None


def test_without_the_library_there_are_no_clocks(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: (_ for _ in ()).throw(OSError(name)))
    module._library.cache_clear()
    assert module.gpu_clocks(BUS_ID) is None
    module._library.cache_clear()
