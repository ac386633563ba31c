"""Streaming conversion of token ids to text."""

from __future__ import annotations

import codecs
from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

from dflash.errors import RequestError
from dflash.model.text.tokenizer import Tokenizer

_utf8 = codecs.getincrementaldecoder("utf-8")


class TextStream:
    """Streaming decoder of one sequence, with stop strings.

    The joined results of all calls are `Tokenizer.decode` of all ids, which continue a text, up to the first stop string,
    however the ids are split over the calls. Text is held back only while it ends inside a character or may be the start of
    a stop string. If the last id ends inside a character, the bytes of that character are dropped.

    tokenizer: provides the bytes of each id.
    stop: stop strings. The text ends before the first one that is complete; of two that end together, before the longer.
    shown: control tokens that are not left out, such as those that mark tool calls.
    min_tokens: number of first ids whose text can't complete a stop string. A stop string may begin in it, as in vLLM.
    stopped: the stop string that ended the text.

    Takes constant time per byte on average.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        skip_special: bool = False,
        shown: Collection[int] = (),
        min_tokens: int = 0,
    ) -> None:
        if isinstance(stop, str):
            stop = (stop,)
        if not isinstance(stop, Iterable):
            raise RequestError(f"stop: wanted a text or several, got {stop!r}")
        self._searches = [_Search(text) for text in stop]
        self._tokenizer, self._skip_special, self._min_tokens = tokenizer, skip_special, min_tokens
        self._shown = frozenset(shown)
        self._decoder = _utf8("replace")
        self._held = ""
        self._n_emitted = 0
        self._ends: list[int] = []
        self._finished = False
        self.stopped: str | None = None

    @property
    def n_tokens(self) -> int:
        """Number of ids that contributed to the text returned so far.

        Includes an id whose text begins in the returned text and ends in held text or in the stop string. After `finish`
        without a stop string, all ids count.
        """
        if self._finished and self.stopped is None:
            return len(self._ends)
        return bisect_left(self._ends, self._n_emitted) + 1 if self._n_emitted else 0

    def push(self, ids: Iterable[int]) -> str:
        """Decode more ids and return the new text that no later id can change."""
        assert not self._finished, "push after finish"
        shown = []
        for token in ids:
            if self.stopped is not None:
                break
            skipped = self._skip_special and self._tokenizer.is_special(token) and token not in self._shown
            text = "" if skipped else self._decoder.decode(self._tokenizer.token_bytes(token))
            self._ends.append(self._n_emitted + len(self._held) + len(text))
            if text:
                shown.append(self._show(text))
        return "".join(shown)

    def finish(self) -> str:
        """Return the held text; call this after the last id."""
        if self._finished or self.stopped is not None:
            self._finished = True
            return ""
        self._finished = True
        shown = self._show(_rest(self._decoder.getstate()[0]))
        if self.stopped is not None:
            return shown
        shown, self._held = shown + self._held, ""
        return shown

    def _show(self, text: str) -> str:
        """Append decoded text to the held text; remove and return the part that is certain."""
        n_before = len(self._held)
        self._held += text
        n_certain = self._search(text, n_before) if self._searches else len(self._held)
        shown, self._held = self._held[:n_certain], self._held[n_certain:]
        if self.stopped is not None:
            self._held = ""
        self._n_emitted += len(shown)
        return shown

    def _search(self, text: str, n_before: int) -> int:
        """Search new text for stop strings; return how many characters of the held text, new text included, are certain."""
        may_stop = len(self._ends) > self._min_tokens
        for index, letter in enumerate(text):
            found = [search.stop for search in self._searches if search.feed(letter)]
            if found and may_stop:
                self.stopped = max(found, key=len)
                return n_before + index + 1 - len(self.stopped)
        return n_before + len(text) - max(search.matched for search in self._searches)


def _rest(data: bytes) -> str:
    """Decode bytes that a decoder still holds at the end of a text; drop them if they are the start of a character.

    Python's decoder also holds the bytes ED A0 to ED BF (surrogates), which no third byte completes to a character.
    """
    is_surrogate = len(data) > 1 and data[0] == 0xED and data[1] >= 0xA0
    return data.decode("utf-8", "replace") if is_surrogate else ""


class _Search:
    """Searches for one string, one character at a time (Knuth, Morris, Pratt 1977)."""

    def __init__(self, stop: str) -> None:
        if not isinstance(stop, str) or not stop:
            raise RequestError(f"stop holds {stop!r}, wanted strings that are not empty")
        self.stop = stop
        self.matched = 0
        self._shorter = _borders(stop)

    def feed(self, letter: str) -> bool:
        """Read the next character; return True if the string ends with it."""
        while self.matched and self.stop[self.matched] != letter:
            self.matched = self._shorter[self.matched - 1]
        self.matched += self.stop[self.matched] == letter
        if self.matched < len(self.stop):
            return False
        self.matched = self._shorter[-1]  # continue the search, since the stop string is ignored before `min_tokens`
        return True


@lru_cache(maxsize=64)
def _borders(stop: str) -> tuple[int, ...]:
    """Return the length of the longest proper border of each prefix; cached, since many requests share stop strings."""
    lengths = [0] * len(stop)
    for end in range(1, len(stop)):
        border = lengths[end - 1]
        while border and stop[border] != stop[end]:
            border = lengths[border - 1]
        lengths[end] = border + (stop[border] == stop[end])
    return tuple(lengths)
