"""Prompt lookup: find an earlier occurrence of the last tokens of a sequence."""

import os
from collections.abc import Sequence

import numpy as np

from dflash.errors import KernelError
from dflash.kernels.lookup import cpu

_SMALLEST = 1024  # smallest capacity in tokens


class Index:
    """Index of the latest occurrence of every short n-gram of a growing token sequence.

    Parameters
    ----------
    shortest, longest : int
        Lengths of the n-grams, 1 or more.
    room : int
        Expected number of tokens; the tables are rebuilt if there are more.

    Raises
    ------
    KernelError
        If the lengths are out of range.

    Notes
    -----
    A hash table for each length holds the end of the latest occurrence. The last token is not entered yet, so an n-gram
    never matches itself. The hash has random keys, so no input can be crafted to collide; results do not depend on the
    keys. A token costs ``longest - shortest + 1`` look-ups for any sequence. The tables take 8 to 16 bytes a token for each
    length.
    """

    def __init__(self, shortest: int, longest: int, room: int = 0) -> None:
        if not 1 <= shortest <= longest:
            raise KernelError(f"lookup: lengths must be 1 or more, the longest last, got {shortest} and {longest}")
        self._shortest, self._longest = shortest, longest
        self._n = self._filled = 0
        self._keys = np.frombuffer(bytearray(os.urandom(8 * (longest + 1))), np.int64)
        self._text = np.empty(1 << (max(room, _SMALLEST) - 1).bit_length(), np.int32)
        self._tables = self._empty_tables()

    def __len__(self) -> int:
        """Number of tokens."""
        return self._n

    def append(self, tokens: Sequence[int]) -> None:
        """Append tokens to the sequence."""
        n = self._n + len(tokens)
        if n > len(self._text):
            self._text = np.resize(self._text, 1 << n.bit_length())
            self._tables, self._filled = self._empty_tables(), 0
        self._text[self._n : n] = tokens
        self._n = n
        if n - 1 > self._filled:
            cpu.fill(self._text, self._filled, n - 1, self._shortest, self._tables, self._keys)
            self._filled = n - 1

    def match(self) -> tuple[int, int]:
        """Find the longest n-gram at the end of the sequence that occurred before, at its latest earlier occurrence.

        Returns
        -------
        length, follower : int
            Length of the n-gram, and index of the token after its earlier occurrence; 0 and the end if there is none.
        """
        return cpu.match(self._text, self._n, self._shortest, self._tables, self._keys)

    def following(self, start: int, n: int) -> np.ndarray:
        """Return n tokens from `start` on, int32 (n,); tokens up to the end repeat if they are fewer."""
        return np.resize(self._text[start : self._n], n)

    def _empty_tables(self) -> np.ndarray:
        return np.full((self._longest - self._shortest + 1, 2 * len(self._text)), -1, np.int32)
