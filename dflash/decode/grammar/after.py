"""A grammar that begins after a certain token, such as the end of reasoning or the start of a tool call."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dflash.decode.grammar.matcher import Grammar, Matcher, Words


@dataclass(frozen=True, slots=True)
class AfterToken:
    """Free output up to a token, then a grammar.

    opens: if given, the output begins in the grammar, and only this token, as its first one, opens free output.
    repeats: return to free output where the grammar is complete; the token then starts the grammar anew.
    enters: another token that ends free output; it is the first one of the grammar. So a tool call ends reasoning.
    legal: uint32 (ceil(V / 32),), optional; tokens that may stand in free output, as a bit-packed set; all if None. So no
        end token comes before the grammar.
    """

    grammar: Grammar
    token: int
    opens: int | None = None
    repeats: bool = False
    enters: int | None = None
    legal: Words | None = field(default=None, repr=False, compare=False)

    @property
    def mask_load(self) -> float:
        """See `Grammar`."""
        return self.grammar.mask_load

    def start(self) -> "AfterMatcher":
        """Return the position before the first token."""
        return AfterMatcher(self)


class _Segment:
    """A stretch of tokens: free output if it has no matcher. `n` counts its tokens.

    `began` is True if its first token began it; without that token there is no such stretch.
    """

    __slots__ = ("began", "matcher", "n")

    def __init__(self, matcher: Matcher | None, *, began: bool = False) -> None:
        self.matcher, self.n, self.began = matcher, int(began), began


class AfterMatcher:
    """Position in an `AfterToken`: the segments so far."""

    def __init__(self, about: AfterToken) -> None:
        self._about = about
        self._segments = [_Segment(None if about.opens is None else about.grammar.start())]

    @property
    def free(self) -> bool:
        """See `Matcher`."""
        matcher = self._segments[-1].matcher
        return self._about.legal is None if matcher is None else matcher.free

    @property
    def binds(self) -> bool:
        """See `Matcher`."""
        matcher = self._segments[-1].matcher
        return matcher is not None and matcher.binds

    @property
    def is_accepting(self) -> bool:
        """See `Matcher`: free output may end anywhere, unless its tokens are limited."""
        matcher = self._segments[-1].matcher
        return self._about.legal is None if matcher is None else matcher.is_accepting

    @property
    def is_complete(self) -> bool:
        """See `Matcher`."""
        matcher = self._segments[-1].matcher
        return matcher is not None and matcher.is_complete

    @property
    def mask_seconds(self) -> float:
        """See `Matcher`."""
        matcher = self._segments[-1].matcher
        return 0.0 if matcher is None else matcher.mask_seconds

    def mask(self) -> Words:
        """See `Matcher`."""
        matcher = self._segments[-1].matcher
        if matcher is None:
            assert self._about.legal is not None, "free output has no mask"
            return self._about.legal
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
            return self._advance_free(token, segment)
        if self._may_open and token == about.opens:
            self._segments.append(_Segment(None, began=True))
            return True
        if not matcher.advance(token):
            return False
        segment.n += 1
        if about.repeats and matcher.is_complete:
            self._segments.append(_Segment(None))
        return True

    def _advance_free(self, token: int, segment: _Segment) -> bool:
        about = self._about
        if about.legal is not None and not about.legal[token // 32] >> np.uint32(token % 32) & 1:
            return False
        if token == about.enters:
            matcher = about.grammar.start()
            if not matcher.advance(token):
                return False
            self._segments.append(_Segment(matcher, began=True))
            return True
        segment.n += 1
        if token == about.token:
            self._segments.append(_Segment(about.grammar.start()))
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
            if n or (segment.began and not segment.n):
                self._segments.pop()

    def forced(self) -> Sequence[int]:
        """See `Matcher`."""
        matcher = self._segments[-1].matcher
        return () if matcher is None or self._may_open else matcher.forced()

    @property
    def _may_open(self) -> bool:
        """True before the first token, if that may open free output."""
        return self._about.opens is not None and len(self._segments) == 1 and self._segments[0].n == 0
