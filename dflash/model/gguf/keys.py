"""Checked access to a model's metadata; errors name the missing or invalid key."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dflash.errors import FormatError
from dflash.model.gguf.header import Value

_REQUIRED = object()


class Keys:
    """Metadata of one architecture, read key by key with checks.

    architecture: prefix of the keys: with ``"qwen35"``, ``integer("block_count")`` reads ``qwen35.block_count``.
    """

    def __init__(self, metadata: Mapping[str, Value], architecture: str) -> None:
        self._metadata = metadata
        self._prefix = architecture + "."

    def __contains__(self, name: str) -> bool:
        return self._prefix + name in self._metadata

    def integer(self, name: str, default: object = _REQUIRED, *, low: int = 1, high: int = 2**31 - 1) -> int:
        """Return a whole number within `low` and `high`."""
        value = self.value(name, default)
        if value is default:
            return default
        if type(value) is not int or not low <= value <= high:
            raise self.wrong(name, value, f"a whole number from {low} to {high}")
        return value

    def number(self, name: str, default: object = _REQUIRED, *, low: float, high: float) -> float:
        """Return a finite number within `low` and `high`; raises as `integer`."""
        value = self.value(name, default)
        if value is default:
            return default
        if type(value) not in {int, float} or not math.isfinite(value) or not low <= value <= high:
            raise self.wrong(name, value, f"a number from {low:g} to {high:g}")
        return float(value)

    def text(self, name: str, default: Any = _REQUIRED) -> str:
        """Return a string; raises as `integer`."""
        value = self.value(name, default)
        if value is not default and type(value) is not str:
            raise self.wrong(name, value, "a string")
        return value

    def flag(self, name: str, *, default: object = _REQUIRED) -> Any:
        """Return true or false, or the default; raises as `integer`."""
        value = self.value(name, default)
        if value is not default and type(value) is not bool:
            raise self.wrong(name, value, "true or false")
        return value

    def integers(self, name: str, default: object = _REQUIRED, *, low: int = 0, high: int = 2**31 - 1) -> tuple[int, ...]:
        """Return an array of whole numbers or bools, each within `low` and `high`; raises as `integer`."""
        value = self.value(name, default)
        if value is default:
            return default
        sound = isinstance(value, np.ndarray) and value.dtype.kind in "biu"
        if not sound or (value < low).any() or (value > high).any():
            raise self.wrong(name, value, f"an array of whole numbers from {low} to {high}")
        return tuple(int(item) for item in value.tolist())

    def per_block(self, name: str, n_blocks: int, *, low: int = 0, high: int = 2**31 - 1) -> tuple[int, ...]:
        """Return one whole number per block, from an array or from one number for all blocks; raises as `integer`."""
        if not isinstance(self.value(name, _REQUIRED), np.ndarray):
            return (self.integer(name, low=low, high=high),) * n_blocks
        values = self.integers(name, low=low, high=high)
        if len(values) != n_blocks:
            raise self.wrong(name, values, f"an array of {n_blocks} numbers, one for each block")
        return values

    def wrong(self, name: str, value: object, wanted: str) -> FormatError:
        """Return the error for a key that holds `value` where `wanted` describes the valid values."""
        shown = repr(value[:20].tolist() if isinstance(value, np.ndarray) else value)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return FormatError(f"key {self._prefix + name!r} is {shown}, must be {wanted}")

    def value(self, name: str, default: object = _REQUIRED) -> Any:
        """Return the value of a key without a check; raises `FormatError` if it is missing and has no default."""
        value = self._metadata.get(self._prefix + name, default)
        if value is _REQUIRED:
            raise FormatError(f"key {self._prefix + name!r} is missing")
        return value
