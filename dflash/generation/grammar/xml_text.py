"""Texts as values of parameters in a call written as XML."""

from collections.abc import Sequence

from dflash.generation.grammar.lark import pattern_of, quoted
from dflash.generation.parsers.calls.value_end import CALL_END, CLOSE, FUNCTION_END, PARAMETER

_BLANK = r"[ \t\r\n]*"
_ENDS = (
    f"{pattern_of(CLOSE)}{_BLANK}(?:{pattern_of(PARAMETER)}|{pattern_of(FUNCTION_END)}|{pattern_of(CALL_END)})",
    f"{pattern_of(FUNCTION_END)}{_BLANK}{pattern_of(CALL_END)}",
)
"""Patterns that end a value at the start of a line; see `dflash.generation.parsers.calls.value_end`."""


class TextRules:
    """Makes rules of text values. Their terminals reach to the tag after the value, which alone tells that the value ends.

    tags: tokens of tags, such as ``<think>``, that free text may hold beside ordinary tokens.
    call_end: token that closes a call. Free text may hold it, but not at the start of a line, where models forget other
        tags.
    """

    def __init__(self, tags: Sequence[int] = (), call_end: int | None = None) -> None:
        self.rules: list[str] = []
        self._tags, self._call_end = tags, call_end
        self._chunks: dict[str, str] = {}
        self._names: dict[tuple[str, str], str] = {}
        self._unended_names: dict[tuple[str, ...], str] = {}

    def options(
        self,
        name: str,
        text: str,
        open_keys: Sequence[str],
        *,
        more: Sequence[str],
        last: bool,
        known: Sequence[str] = (),
        tagged: bool = False,
    ) -> list[str]:
        """Return the alternatives of a value and of what follows it, up to the end of the function.

        open_keys: parameters of the function that may not have been given before: their tags end a value at the start of a
            line.
        known: keys, with their bracket, that were given before. The value goes on after them, since none begins twice.
        """
        value = f"{text} & {self._unended(open_keys)}"
        options = []
        if more or known:
            again = [f"({' | '.join(known)}) {name}"] if known else []
            options.append(f"{self._terminal(value, f'{CLOSE}{chr(10)}{PARAMETER}')} ({' | '.join([*more, *again])})")
        if last:
            options.append(self._terminal(value, f"{CLOSE}\n{FUNCTION_END}"))
        return [*options, *self._tagged(name, value)] if tagged else options

    def _tagged(self, name: str, value: str) -> list[str]:
        """Return the alternatives of a free text that goes on after the token of a tag."""
        if value not in self._chunks:
            n = len(self._chunks)
            self._chunks[value] = f"c{n}"
            self.rules += [f"c{n}: CHUNK{n}", f"CHUNK{n}: {value} & /(?s:.+)/"]
            self.rules += [f"c{n}l: LINE{n}", rf"LINE{n}: {value} & /(?s:.*)[^\n \t]/"]
        chunk = self._chunks[value]
        found = [f"{chunk}? ({' | '.join(f'<[{tag}]>' for tag in self._tags)}) {name}"] if self._tags else []
        return [*found, *([f"{chunk}l <[{self._call_end}]> {name}"] if self._call_end is not None else [])]

    def _unended(self, open_keys: Sequence[str]) -> str:
        """Return the terminal of all texts in which nothing ends a value."""
        keys = tuple(open_keys)
        if keys not in self._unended_names:
            name = self._unended_names[keys] = f"U{len(self._unended_names)}"
            tags = [f"{pattern_of(PARAMETER)}(?:{'|'.join(map(pattern_of, keys))})>"] if keys else []
            self.rules.append(rf"{name}: ~/((?s:.*)\n)?(?:{'|'.join([*_ENDS, *tags])})(?s:.*)/")
        return self._unended_names[keys]

    def _terminal(self, value: str, end: str) -> str:
        """Return the name of a rule that ends at the first `end` at the start of a line after a text."""
        known = self._names.get((value, end))
        if known is not None:
            return known
        name = self._names[value, end] = f"t{len(self._names)}"
        self.rules += [f"{name}[lazy]: {name.upper()}", f"{name.upper()}: ({value}) {quoted(chr(10) + end)}"]
        return name
