"""CUDA errors after which only a new process can use the device."""

from types import SimpleNamespace

import pytest

from dflash.errors import DeviceLost, KernelError
from dflash.kernels.gpu import driver


@pytest.mark.parametrize(
    ("code", "error"), [(700, DeviceLost), (719, DeviceLost), (214, DeviceLost), (1, KernelError), (2, KernelError)]
)
def test_a_lost_device_has_an_error_of_its_own(monkeypatch, code, error):
    monkeypatch.setattr(
        driver, "library", lambda: SimpleNamespace(cuGetErrorName=_says_nothing, cuGetErrorString=_says_nothing)
    )
    with pytest.raises(KernelError, match=f"launch: CUDA error {code}") as raised:
        driver.check(code, "launch")
    assert type(raised.value) is error


def _says_nothing(code, text):
    return 0
