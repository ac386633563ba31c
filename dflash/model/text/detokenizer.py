"""Ids in, text out as soon as it is certain."""

from __future__ import annotations

import codecs
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import lru_cache

from dflash.errors import RequestError
from dflash.model.text.tokenizer import Tokenizer

_utf8 = codecs.getincrementaldecoder("utf-8")


class TextStream:
    """Streaming decoder of one text, with stop strings.

    What all calls return, joined, is `Tokenizer.decode` of all ids, up to the first stop string, however the ids
    are split over the calls. Text is held back only while it ends inside a character or may be the start of a
    stop string. Where the last id ends inside a character, the bytes of that character are left out.

    Parameters
    ----------
    tokenizer : Tokenizer
        Knows the bytes of each id.
    stop : sequence of str
        The text ends before the one of these that is complete first; of two that end together, before the longer.
    skip_special : bool
        Whether control tokens are left out of the text.
    min_tokens : int
        Stop strings are looked for only in what follows the text of so many ids; one may begin before that, as in vLLM.

    Attributes
    ----------
    stopped : str or None
        The stop string that ended the text.

    Raises
    ------
    RequestError
        If a stop string is empty or not a string.

    Notes
    -----
    Costs a few steps a byte, whatever came before.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, stop: Sequence[str] = (), skip_special: bool = False, min_tokens: int = 0
    ) -> None:
        if isinstance(stop, str):
            stop = (stop,)
        if not isinstance(stop, Iterable):
            raise RequestError(f"stop: wanted a text or several, got {stop!r}")
        self._searches = [_Search(text) for text in stop]
        self._tokenizer, self._skip_special, self._min_tokens = tokenizer, skip_special, min_tokens
        self._decoder = _utf8("replace")
        self._held = ""
        self._n_emitted = 0
        self._ends: list[int] = []
        self._finished = False
        self.stopped: str | None = None

    @property
    def n_tokens(self) -> int:
        """How many of the ids the text returned so far is made of.

        An id that also reaches into what is held back, or into the stop string, counts; one that begins there
        does not. After `finish` without a stop string it is all of them.
        """
        if self._finished and self.stopped is None:
            return len(self._ends)
        return bisect_left(self._ends, self._n_emitted) + 1 if self._n_emitted else 0

    def push(self, ids: Iterable[int]) -> str:
        """Take ids and return the new text that no later id can change.

        Parameters
        ----------
        ids : iterable of int
            The next ids; what follows a stop string is ignored.

        Raises
        ------
        RequestError
            If an id is not in the vocabulary.
        """
        assert not self._finished, "push after finish"
        shown = []
        for token in ids:
            if self.stopped is not None:
                break
            skipped = self._skip_special and self._tokenizer.is_special(token)
            text = "" if skipped else self._decoder.decode(self._tokenizer.token_bytes(token))
            self._ends.append(self._n_emitted + len(self._held) + len(text))
            if text:
                shown.append(self._show(text))
        return "".join(shown)

    def finish(self) -> str:
        """Return what was held back: no id follows."""
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
        """Add decoded text to what is held and take from there what is certain."""
        n_before = len(self._held)
        self._held += text
        n_certain = self._search(text, n_before) if self._searches else len(self._held)
        shown, self._held = self._held[:n_certain], self._held[n_certain:]
        if self.stopped is not None:
            self._held = ""
        self._n_emitted += len(shown)
        return shown

    def _search(self, text: str, n_before: int) -> int:
        """Go through new text and return how much of what is held, new text included, is certain."""
        may_stop = len(self._ends) > self._min_tokens
        for index, letter in enumerate(text):
            found = [search.stop for search in self._searches if search.feed(letter)]
            if found and may_stop:
                self.stopped = max(found, key=len)
                return n_before + index + 1 - len(self.stopped)
        return n_before + len(text) - max(search.matched for search in self._searches)


def _rest(data: bytes) -> str:
    """Decode what a decoder still holds at the end of a text: nothing if it is the start of a character.

    Python's decoder also waits behind the bytes ED A0 to ED BF, which no third byte makes a character.
    """
    is_surrogate = len(data) > 1 and data[0] == 0xED and data[1] >= 0xA0
    return data.decode("utf-8", "replace") if is_surrogate else ""


class _Search:
    """Looks for one string a letter at a time (Knuth, Morris, Pratt 1977)."""

    def __init__(self, stop: str) -> None:
        if not isinstance(stop, str) or not stop:
            raise RequestError(f"stop holds {stop!r}, wanted strings that are not empty")
        self.stop = stop
        self.matched = 0
        self._shorter = _borders(stop)

    def feed(self, letter: str) -> bool:
        """Take the next letter; true if the string ends with it."""
        while self.matched and self.stop[self.matched] != letter:
            self.matched = self._shorter[self.matched - 1]
        self.matched += self.stop[self.matched] == letter
        if self.matched < len(self.stop):
            return False
        self.matched = self._shorter[-1]  # where the search goes on if the string may not stop the text yet
        return True


@lru_cache(maxsize=64)
def _borders(stop: str) -> tuple[int, ...]:
    """Length of the longest proper border of each prefix; streams with the same stop string share the table."""
    lengths = [0] * len(stop)
    for end in range(1, len(stop)):
        border = lengths[end - 1]
        while border and stop[border] != stop[end]:
            border = lengths[border - 1]
        lengths[end] = border + (stop[border] == stop[end])
    return tuple(lengths)
