"""Read the values of a GGUF header (numbers, strings and arrays) with bounds checks."""

from mmap import mmap
from typing import Any, Literal, NoReturn, TypeAlias, overload

import numpy as np

from dflash.errors import FormatError, Unsupported

Value: TypeAlias = bool | int | float | str | np.ndarray | list[str]
"""Value of a metadata key; an array of numbers or bools is a NumPy array, an array of strings a list."""

MAX_HEADER = 1 << 27
"""Most bytes of metadata and tensor list (128 MiB); with a vocabulary of 250,000 tokens they take 11 MB."""

_BOOL, _STRING, _ARRAY = 7, 8, 9
_NUMBERS: dict[int, np.dtype[Any]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_SMALLEST = {_BOOL: 1, _STRING: 8} | {kind: dtype.itemsize for kind, dtype in _NUMBERS.items()}
"""Smallest number of bytes of an array element, by value type."""


def quoted(name: str) -> str:
    """Return `name` in quotes for a message, shortened to 80 characters."""
    return repr(name if len(name) <= 80 else name[:77] + "...")


class HeaderReader:
    """Reads a header from its start, never past its end. end: file offset at which the header must have ended."""

    def __init__(self, data: mmap, file: str) -> None:
        self._data = data
        self.file = file
        self.position = 0
        self.end = min(len(data), MAX_HEADER)

    def fail(self, problem: str, at: int | None = None) -> NoReturn:
        """Raise a `FormatError` that names the file, the problem and a file offset (by default `position`)."""
        raise FormatError(f"{self.file}: {problem} (file offset {self.position if at is None else at:#x})")

    def require(self, n_bytes: int, what: str) -> None:
        """Fail unless the header still holds `n_bytes`."""
        left = self.end - self.position
        if n_bytes > left:
            limit = "the file" if self.end < MAX_HEADER else f"the {MAX_HEADER >> 20} MiB that a header may take"
            self.fail(f"{what} needs {n_bytes} bytes, only {left} are left of {limit}")

    @overload
    def number(self, dtype: Literal["<u4", "<u8"], what: str) -> int: ...
    @overload
    def number(self, dtype: np.dtype, what: str) -> int | float: ...
    def number(self, dtype: str | np.dtype, what: str) -> int | float:
        """Read one number."""
        dtype = np.dtype(dtype)
        self.require(dtype.itemsize, what)
        value = np.frombuffer(self._data, dtype, 1, self.position)[0].item()
        self.position += dtype.itemsize
        return value

    def count(self, what: str, *, smallest: int) -> int:
        """Read the number of items that follow, each of at least `smallest` bytes, and check that they fit the header."""
        at = self.position
        n = self.number("<u8", what)
        if n * smallest > self.end - self.position:
            self.fail(f"{what} is {n}, but only {self.end - self.position} bytes of the header are left", at)
        return n

    def string(self, what: str) -> str:
        """Read one string."""
        return self._strings(1, what)[0]

    def value(self, what: str) -> Value:
        """Read a value type and then a value of this type."""
        kind = self.number("<u4", f"the type of {what}")
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind], what)
        if kind == _STRING:
            return self.string(what)
        if kind == _BOOL:
            return bool(self._bools(1, what)[0])
        if kind == _ARRAY:
            return self._array(what)
        return self.fail(f"{what} has value type {kind}, known are 0 to 12", self.position - 4)

    def _array(self, what: str) -> np.ndarray | list[str]:
        kind = self.number("<u4", f"the element type of {what}")
        if kind == _ARRAY:
            raise Unsupported(f"{self.file}: {what} is an array of arrays, which no model of this kind needs")
        if kind not in _SMALLEST:
            self.fail(f"{what} is an array of value type {kind}, known are 0 to 12", self.position - 4)
        n = self.count(f"the number of elements of {what}", smallest=_SMALLEST[kind])
        if kind == _STRING:
            return self._strings(n, what)
        if kind == _BOOL:
            return self._bools(n, what)
        return self._numbers(_NUMBERS[kind], n)

    def _numbers(self, dtype: np.dtype, n: int) -> np.ndarray:
        values = np.frombuffer(self._data, dtype, n, self.position).astype(dtype.newbyteorder("="))
        self.position += values.nbytes
        return values

    def _bools(self, n: int, what: str) -> np.ndarray:
        self.require(n, what)
        at, raw = self.position, self._numbers(_NUMBERS[0], n)
        if (raw > 1).any():
            first = int(np.argmax(raw > 1))
            self.fail(f"{what} is a bool of value {raw[first]}, must be 0 or 1", at + first)
        return raw.astype(bool)

    def _strings(self, n: int, what: str) -> list[str]:
        # Kept to two slices and one comparison per string: a vocabulary has 250,000 strings.
        data, end, start, stop = self._data, self.end, self.position, self.position
        strings = []
        try:
            for _ in range(n):
                start = stop + 8
                stop = start + int.from_bytes(data[stop:start], "little")
                if stop > end:
                    self._too_long(what, start, stop)
                strings.append(data[start:stop].decode())
        except UnicodeDecodeError as error:
            self.fail(f"{what} is not UTF-8: byte {error.object[error.start]:#04x}", start + error.start)
        self.position = stop
        return strings

    def _too_long(self, what: str, start: int, stop: int) -> NoReturn:
        if start > self.end:
            self.fail(f"{what} ends in the middle of a string's length", start - 8)
        self.fail(
            f"{what} is a string of {stop - start} bytes, but only {self.end - start} bytes of the header are left",
            start - 8,
        )
