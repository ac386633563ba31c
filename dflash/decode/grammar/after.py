"""A grammar that begins after a certain token, such as the end of reasoning or the start of a tool call."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dflash.decode.grammar.matcher import Grammar, Matcher, Words


@dataclass(frozen=True, slots=True)
class AfterToken:
    """Free output up to a token, then a grammar.

    Parameters
    ----------
    grammar : Grammar
        Grammar of the output after the token.
    token : int
        Token that ends free output.
    opens : int, optional
        If given, the output begins in the grammar, and only this token, as its first one, opens free output.
    repeats : bool
        Return to free output where the grammar is complete; the token then starts the grammar anew.
    """

    grammar: Grammar
    token: int
    opens: int | None = None
    repeats: bool = False

    def start(self) -> "AfterMatcher":
        """Return the position before the first token."""
        return AfterMatcher(self)


class _Segment:
    """A stretch of tokens: free output if it has no matcher. `n` counts its tokens."""

    __slots__ = ("matcher", "n")

    def __init__(self, matcher: Matcher | None, n: int = 0) -> None:
        self.matcher, self.n = matcher, n


class AfterMatcher:
    """Position in an `AfterToken`: the segments so far."""

    def __init__(self, about: AfterToken) -> None:
        self._about = about
        self._segments = [_Segment(None if about.opens is None else about.grammar.start())]

    @property
    def free(self) -> bool:
        """See `Matcher`."""
        matcher = self._segments[-1].matcher
        return matcher is None or matcher.free

    @property
    def is_accepting(self) -> bool:
        """See `Matcher`: free output may end anywhere."""
        matcher = self._segments[-1].matcher
        return matcher is None or matcher.is_accepting

    @property
    def is_complete(self) -> bool:
        """See `Matcher`."""
        matcher = self._segments[-1].matcher
        return matcher is not None and matcher.is_complete

    def mask(self) -> Words:
        """See `Matcher`."""
        matcher = self._segments[-1].matcher
        assert matcher is not None, "free output has no mask"
        words = matcher.mask()
        if self._may_open:
            assert self._about.opens is not None
            words = words.copy()
            words[self._about.opens // 32] |= np.uint32(1 << self._about.opens % 32)
        return words

    def advance(self, token: int) -> bool:
        """See `Matcher`."""
        about, segment = self._about, self._segments[-1]
        matcher = segment.matcher
        if matcher is None:
            segment.n += 1
            if token == about.token:
                self._segments.append(_Segment(about.grammar.start()))
            return True
        if self._may_open and token == about.opens:
            self._segments.append(_Segment(None, 1))
            return True
        if not matcher.advance(token):
            return False
        segment.n += 1
        if about.repeats and matcher.is_complete:
            self._segments.append(_Segment(None))
        return True

    def rollback(self, n: int) -> None:
        """See `Matcher`."""
        while n:
            segment = self._segments[-1]
            undone = min(n, segment.n)
            if segment.matcher is not None:
                segment.matcher.rollback(undone)
            segment.n -= undone
            n -= undone
            if n or self._was_opened:
                self._segments.pop()

    def forced(self) -> Sequence[int]:
        """See `Matcher`."""
        matcher = self._segments[-1].matcher
        return () if matcher is None or self._may_open else matcher.forced()

    @property
    def _may_open(self) -> bool:
        """True before the first token, if that may open free output."""
        return self._about.opens is not None and len(self._segments) == 1 and self._segments[0].n == 0

    @property
    def _was_opened(self) -> bool:
        """True in free output whose opening token was undone."""
        return len(self._segments) == 2 and self._segments[0].n == self._segments[1].n == 0
