"""Runs of text by the origin of the tokens that they come from."""

import codecs
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from dflash.cli.answer.pen import NAMES, Pen
from dflash.generation.display.origins import counts, kinds, rejected

if TYPE_CHECKING:
    from dflash.decode.step import Step
    from dflash.model.text.tokenizer import Tokenizer

MAX_REJECTED = 40
"""Characters shown of the draft tokens that were rejected at one token."""

MAX_LEGEND = 120
"""Columns of the legend where the terminal's width is not known."""

_PIECE = re.compile(r"\w+|\W+")
_TAG = re.compile(r"<(/?(?:think|tool_call|tool_response|function|parameter)[^<>\n]*|\|[^<>|\s]+\|)>?")
"""Tags of reasoning and of calls, perhaps cut at the end, and control tokens."""

_ESCAPES = str.maketrans({"\n": "\\n", "\r": "\\r", "\t": "\\t"})


class Run(NamedTuple):
    """Text of one origin, a key of `dflash.cli.answer.pen.COLORS`; empty for text of no token."""

    text: str
    origin: str = ""


class OriginRuns:
    """Divides the text of events into runs of one origin.

    The text of the tokens is what the model wrote, tags included; events hold the parts of it that are shown. Their text is
    found again in that of the tokens, in order.
    """

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self.counts: Counter[str] = Counter()
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        self._letters: list[tuple[str, list[Run]]] = []  # origin of each letter of the text, and runs to show before it
        self._before: list[Run] = []  # runs to show before the next letter

    def push(self, step: "Step") -> None:
        """Add the tokens of a step."""
        self.counts.update(counts([step]))
        for token, origin, paths in zip(step.tokens, kinds(step), rejected(step), strict=False):
            if paths:
                self._before.append(Run(self._rejected(paths), "rejected"))
            if self._tokenizer.is_special(token):
                self._before.append(Run(self._named([token]), origin))
                continue
            for letter in self._decoder.decode(self._tokenizer.token_bytes(token)):
                self._text += letter
                self._letters.append((origin, self._before))
                self._before = []

    def take(self, text: str) -> Iterator[Run]:
        """Yield the runs of the next text that is shown. Of the JSON of a call only the words are the model's own text."""
        for piece in [text] if text in self._text else _PIECE.findall(text):
            at = self._text.find(piece)
            if at < 0 or (at and piece != text and not piece[0].isalnum()):
                yield Run(piece)
                continue
            yield from self._skip(at)
            end = at + len(piece)
            start = at
            for here in range(at, end):
                origin, before = self._letters[here]
                if before or origin != self._letters[start][0]:
                    yield Run(self._text[start:here], self._letters[start][0])
                    yield from before
                    start = here
            yield Run(self._text[start:end], self._letters[start][0])
            self._text, self._letters = self._text[end:], self._letters[end:]

    def rest(self) -> Iterator[Run]:
        """Yield what stands after the last text that is shown: rejected draft tokens, and the end token."""
        yield from self._skip(len(self._letters))
        yield from self._before
        self._before = []

    def _skip(self, n: int) -> Iterator[Run]:
        """Yield the runs before the next n letters, which are not shown themselves."""
        for _, before in self._letters[:n]:
            yield from before
            before.clear()

    def _rejected(self, paths: list[list[int]]) -> str:
        """Return the first of the rejected paths, and the number of the others."""
        text = self._named(paths[0])
        short = text if len(text) <= MAX_REJECTED else f"{text[: MAX_REJECTED - 3]}..."
        return short if len(paths) == 1 else f"{short} +{len(paths) - 1}"

    def _named(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens on one line, with ``(name)`` in place of a tag or control token."""
        text = b"".join(map(self._tokenizer.token_bytes, tokens)).decode("utf-8", "replace")
        return _TAG.sub(lambda tag: f"({tag[1].strip('|')})", text).translate(_ESCAPES)


def write_legend(found: Mapping[str, int], pen: Pen) -> None:
    """Write the number of tokens of each origin that occurs, each in its style, broken between the entries."""
    columns, at = pen.columns or MAX_LEGEND, 0
    pen.write("\n")
    for origin, text in ((origin, f"{n:,} {name}") for origin, name in NAMES.items() if (n := found.get(origin, 0))):
        if at:
            fits = at + 2 + len(text) + 4 <= columns
            pen.write("  " if fits else "\n")
            at = at + 2 if fits else 0
        pen.write(text, origin)
        pen.lift()
        at += len(text) + 4
    pen.write("\n")
