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
    all_of_them : bool
        Also keep where n-grams occurred before, for `occurrences`; 4 bytes more a token for each length.

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

    def __init__(self, shortest: int, longest: int, room: int = 0, *, all_of_them: bool = False) -> None:
        if not 1 <= shortest <= longest:
            raise KernelError(f"lookup: lengths must be 1 or more, the longest last, got {shortest} and {longest}")
        self._shortest, self._longest, self._all = shortest, longest, all_of_them
        self._n = self._filled = 0
        self._keys = np.frombuffer(bytearray(os.urandom(8 * (longest + 1))), np.int64)
        self._text = np.empty(1 << (max(room, _SMALLEST) - 1).bit_length(), np.int32)
        self._tables, self._earlier = self._empty_tables()

    def __len__(self) -> int:
        """Number of tokens."""
        return self._n

    def append(self, tokens: Sequence[int]) -> None:
        """Append tokens to the sequence."""
        n = self._n + len(tokens)
        if n > len(self._text):
            self._text = np.resize(self._text, 1 << n.bit_length())
            (self._tables, self._earlier), self._filled = self._empty_tables(), 0
        self._text[self._n : n] = tokens
        self._n = n
        if n - 1 > self._filled:
            cpu.fill(self._text, self._filled, n - 1, self._shortest, self._tables, self._keys, self._earlier)
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

    def tail(self, n: int) -> np.ndarray:
        """Return the last `n` tokens, or all if they are fewer: int32 (n,)."""
        return self._text[max(0, self._n - n) : self._n]

    def occurrences(self, query: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
        """Find where the longest n-gram at the end of a query occurred that is known here, the latest first.

        Parameters
        ----------
        query : int32 (Q,)
            Tokens, of this sequence or another one.
        most : int
            Most occurrences.

        Returns
        -------
        ends, lengths : int64 (M,)
            Index of the last token of each occurrence that has a follower, and how many tokens up to it are equal to the end
            of the query. Needs `all_of_them`.
        """
        ends, lengths = np.empty((2, most), np.int64)
        n = cpu.occurrences(
            self._text, self._n, query, self._shortest, self._tables, self._keys, self._earlier, ends, lengths
        )
        return ends[:n], lengths[:n]

    def continuations(self, ends: np.ndarray, weights: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Merge what followed some places to a tree.

        Parameters
        ----------
        ends : int64 (M,)
            Indices of the tokens before the continuations.
        weights : float64 (M,)
            Weight of each continuation, positive.
        depth : int
            Most tokens of each. A negative token ends it.

        Returns
        -------
        tokens, parents : int32 (N,), int64 (N,)
            Nodes, parents before children; -1 is the root.
        shares : float64 (N,)
            Part of the weight of all continuations that go through each node.
        """
        size = len(ends) * depth
        tokens, parents, shares = np.empty(size, np.int32), np.empty(size, np.int64), np.empty(size)
        n = cpu.continuations(self._text, self._n, ends, weights, depth, tokens, parents, shares)
        return tokens[:n], parents[:n], shares[:n]

    def _empty_tables(self) -> tuple[np.ndarray, np.ndarray]:
        n = self._longest - self._shortest + 1
        earlier = np.empty((n, len(self._text) if self._all else 0), np.int32)
        return np.full((n, 2 * len(self._text)), -1, np.int32), earlier
