"""Find where the end of a text occurred before."""

import os
from collections.abc import Sequence

import numpy as np

from dflash.errors import KernelError
from dflash.kernels.lookup import cpu

_SMALLEST = 1024


class Index:
    """Where every short run of tokens of a growing text was seen last.

    Parameters
    ----------
    shortest, longest : int
        Lengths of the runs, 1 or more.
    room : int
        Tokens that the text is expected to have; with more the tables are made anew.

    Raises
    ------
    KernelError
        If the lengths are out of range.

    Notes
    -----
    A hash table for each length holds the end of the last run; it is filled up to the token before the last one, so no run
    meets itself. The hash has random keys, so a text can't be written to make runs collide; what is found does not depend on
    them. A token costs ``longest - shortest + 1`` look-ups, whatever the text; the tables take 8 to 16 bytes a token
    for each length.
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
        """Tokens of the text."""
        return self._n

    def append(self, tokens: Sequence[int]) -> None:
        """Let the text grow."""
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
        """Find the longest run that ends the text and occurred before, the most recent one of several.

        Returns
        -------
        length, follower : int
            How many tokens, and where what followed them begins; 0 and the end of the text if there is none.
        """
        return cpu.match(self._text, self._n, self._shortest, self._tables, self._keys)

    def following(self, start: int, n: int) -> np.ndarray:
        """The text from `start` on, int32 (n,), over and over if it ends before."""
        return np.resize(self._text[start : self._n], n)

    def _empty_tables(self) -> np.ndarray:
        return np.full((self._longest - self._shortest + 1, 2 * len(self._text)), -1, np.int32)
