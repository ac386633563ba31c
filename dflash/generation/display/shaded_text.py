"""Text of a generation with each token shaded by its origin."""

import codecs
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import NamedTuple

from dflash.decode.step import Step
from dflash.generation.display.origins import counts, kinds, rejected
from dflash.generation.display.palette import MEANING, TAGS
from dflash.generation.token_texts import TokenText

FIRST, LAST = 700, 300
"""Tokens shown at the start and at the end of a longer text; about 150 bytes of HTML each."""

MAX_PATHS = 6
"""Paths of rejected draft tokens in the tooltip of one token."""

MAX_PATH_LENGTH = 60
"""Characters of one such path."""

_VISIBLE = {code: chr(0x2400 + code) for code in range(0x20)} | {0x7F: "\u2421"}
_VISIBLE |= {code: f"\\u{code:04x}" for code in (*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))}
"""Pictures of C0 controls; code points of C1 controls and of the characters that reorder a line."""

_IN_TEXT = _VISIBLE | {ord(letter): escape(letter) for letter in "<>&"}
_IN_TEXT |= {ord("\n"): '<s data-t="\u21b5"></s>\n', ord("\t"): "\t"}


class _Shown(NamedTuple):
    """A token with its text.

    hidden: text of the token that the generation's text leaves out: a control token's name, or a stop string.
    """

    kind: str
    title: str
    text: str
    hidden: str


def shaded(text: str, steps: Sequence[Step], vocabulary: Mapping[int, TokenText]) -> str:
    """Return the legend and the text of the tokens as HTML.

    Returns: one element per token, with its origin and the draft tokens rejected there as tooltip. Beyond `FIRST` and `LAST`
        tokens, their number is given instead.
    """
    tokens = list(_tokens(text, steps, vocabulary))
    elements = [_element(token) for token in tokens]
    n_left_out = len(tokens) - FIRST - LAST
    if n_left_out > 0:
        gap = f"\n\u2026 {n_left_out:,} tokens left out; print(generation) writes the whole text \u2026\n"
        elements[FIRST:-LAST] = [f"<em>{gap}</em>"]
    return f"{_legend(steps)}<pre>{''.join(elements)}</pre>" if tokens else ""


def _tokens(text: str, steps: Sequence[Step], vocabulary: Mapping[int, TokenText]) -> Iterator[_Shown]:
    """Yield the tokens of all steps. A character belongs to the token that completes it."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    n_left = len(text)
    for index, step in enumerate(steps):
        for token, kind, paths in zip(step.tokens, kinds(step), rejected(step), strict=False):
            entry = vocabulary[token]
            whole = "" if entry.control else decoder.decode(entry.data)
            own = whole[:n_left]
            n_left -= len(own)
            title = f"{MEANING[kind]}, step {index}"
            if not entry.control and not whole:
                title += f", bytes {entry.data.hex(' ')} of a character"
            if paths:
                title += f"; rejected here: {_alternatives(paths, vocabulary)}"
            yield _Shown(kind, title, own, _decoded([entry]) if entry.control else whole[len(own) :])


def _element(token: _Shown) -> str:
    hidden = f'<s data-t="{escape(token.hidden.translate(_VISIBLE))}"></s>' if token.hidden else ""
    tag = TAGS[token.kind]
    return f'<{tag} class="t {token.kind}" title="{escape(token.title)}">{token.text.translate(_IN_TEXT)}{hidden}</{tag}>'


def _alternatives(paths: Sequence[Sequence[int]], vocabulary: Mapping[int, TokenText]) -> str:
    """Return the texts of rejected paths, quoted, with a note of those that are left out."""
    texts = [repr(_decoded([vocabulary[token] for token in path])) for path in paths[:MAX_PATHS]]
    short = [text if len(text) <= MAX_PATH_LENGTH else f"{text[: MAX_PATH_LENGTH - 1]}\u2026" for text in texts]
    more = [f"and {len(paths) - MAX_PATHS} more"] if len(paths) > MAX_PATHS else []
    return ", ".join([*short, *more])


def _decoded(entries: Sequence[TokenText]) -> str:
    return b"".join(entry.data for entry in entries).decode("utf-8", "replace")


def _legend(steps: Sequence[Step]) -> str:
    """Return the number of tokens of each origin that occurs."""
    found = counts(steps)
    parts = [
        f'<span><{tag} class="t {kind}">{found[kind]:,}</{tag}> {_plural(MEANING[kind], found[kind])}</span>'
        for kind, tag in TAGS.items()
        if found[kind]
    ]
    if found["rejected"]:
        parts.append(
            f"<span>{found['rejected']:,} {_plural(MEANING['rejected'], found['rejected'])} (hover over a token)</span>"
        )
    return f'<div class="legend">{"".join(parts)}</div>'


def _plural(meaning: str, n: int) -> str:
    return meaning if n == 1 else meaning.replace("token", "tokens", 1)
