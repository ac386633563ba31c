"""Search for tags in a text that arrives in parts."""

import re

NAME = r"[^<>\n]{1,256}"
"""Name in a tag such as ``<parameter=NAME>``. The bound limits the text that is held back; real names are far shorter."""

SPACE = r"[ \t\r\n]{0,64}"
"""White space between two tags of one call. The bound limits the text that is held back; templates write one line break."""

_MAX_TAG = 300
"""Most characters of a tag: those of a name (256), the angle brackets and the word before the name."""


class TagSearch:
    """Search for the first of several tags.

    A tag contains no ``<`` but its first, so that tags never overlap. Each method takes linear time.

    *tags: tags such as ``"</think>"``. A tag that ends in ``=`` stands for the tag with any name, as ``<parameter=path>``.
    newline: a line break before a tag belongs to the tag.
    line_tags: further tags, of any characters, that count after a line break only.
    """

    def __init__(self, *tags: str, newline: bool = False, line_tags: tuple[str, ...] = ()) -> None:
        lead = "\n?" if newline else ""
        whole = "|".join(re.escape(tag) + (f"(?P<name>{NAME})>" if tag.endswith("=") else "") for tag in tags)
        ends = "|".join(partial(tag) for tag in tags)
        found, begun = ([f"{lead}(?:{whole})"], [f"{lead}(?:{ends})"]) if tags else ([], [])
        begun += ["\n"] if tags and newline else []
        if line_tags:
            found.append(rf"(?<=\n)(?:{'|'.join(map(re.escape, line_tags))})")
            begun += [rf"(?<=\n)(?:{partial(tag)})" for tag in line_tags if len(tag) > 1]
        self._whole = re.compile("|".join(found) or "(?!)")
        self._partial = re.compile(rf"(?:{'|'.join(begun)})\Z" if begun else "(?!)")

    def find(self, text: str, start: int) -> re.Match[str] | None:
        """Return the first whole tag at or after `start`; group ``name`` is its name."""
        return self._whole.search(text, start)

    def held(self, text: str, start: int) -> int:
        """Return the position from which the end of the text may be the start of a tag; the length of the text if none."""
        found = self._partial.search(text, max(start, len(text) - _MAX_TAG))
        return len(text) if found is None else found.start()


def partial(tag: str) -> str:
    """Return a regular expression for the proper prefixes of a tag, at least one character long."""
    name = re.escape(tag) + NAME.replace("1", "0", 1) + "|" if tag.endswith("=") else ""
    return name + "|".join(re.escape(tag[:n]) for n in range(len(tag) - 1, 0, -1))


def beginnings(*parts: str) -> str:
    """Return a regular expression for the beginnings of a sequence of texts, `SPACE` and `NAME`: from none to all of it."""
    found = ""
    for part in reversed(parts):
        if part is SPACE:
            found = SPACE + found
        elif part is NAME:
            found = f"(?:{NAME}{found})?"
        else:
            for character in reversed(part):
                found = f"(?:{re.escape(character)}{found})?"
    return found
