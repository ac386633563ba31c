"""Names of GPUs, as users give them."""

from collections.abc import Sequence

from dflash.errors import RequestError

SPLITS = ("tensor", "layer")
"""Kinds of splits: every layer over all devices, or blocks of consecutive layers on one device each."""

_PREFIX = "cuda:"


def device_kind(name: str) -> str | None:
    """Return ``"cpu"`` or ``"cuda"`` for the name of a device, also for ``"cuda:1"``; None if there is no such kind."""
    return "cuda" if device_number(name) is not None else name if name in ("cpu", "cuda") else None


def device_number(name: str) -> int | None:
    """Return the CUDA device number of ``"cuda:1"``; None for a name without a number, as ``"cuda"`` or ``"cpu"``."""
    text = name.removeprefix(_PREFIX)
    return int(text) if text != name and text.isdecimal() else None


def device_numbers(devices: Sequence[str | int]) -> tuple[int, ...]:
    """Return the CUDA device numbers of names such as ``"cuda:1"``, ``"1"`` or 1."""
    numbers = []
    for name in devices:
        text = str(name).removeprefix(_PREFIX)
        if not text.isdecimal():
            raise RequestError(f"devices: {name!r} is no GPU, must be {_PREFIX}0, {_PREFIX}1 and so on")
        numbers.append(int(text))
    if len(set(numbers)) < len(numbers):
        raise RequestError(f"devices: {', '.join(map(str, devices))} names a GPU twice")
    if not numbers or numbers[0]:
        raise RequestError(
            f"devices: the first must be {_PREFIX}0, got {', '.join(map(str, devices)) or 'none'}; CUDA_VISIBLE_DEVICES "
            "chooses and orders the GPUs of a process"
        )
    return tuple(numbers)
