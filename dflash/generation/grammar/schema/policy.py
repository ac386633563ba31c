"""Treatment of keywords of a schema that a grammar can't enforce."""

from dflash.errors import RequestError

MAX_NOTES = 32
"""Notes of one request; further ones are counted."""


class Notes:
    """Collects what the grammars of a request approximate, for the warnings of its answer."""

    def __init__(self) -> None:
        self._texts: dict[str, None] = {}
        self._n_more = 0

    def add(self, text: str) -> None:
        """Add a note, once."""
        if text not in self._texts:
            if len(self._texts) < MAX_NOTES:
                self._texts[text] = None
            else:
                self._n_more += 1

    @property
    def texts(self) -> list[str]:
        """The notes in the order in which they were added."""
        more = [f"{self._n_more} more keywords of schemas are not enforced"] if self._n_more else []
        return [*self._texts, *more]


class Policy:
    """Refuses what can't be enforced if the schema is strict, else notes it.

    name: field of the request and, for a tool, its name, for messages.
    """

    def __init__(self, name: str, *, strict: bool, notes: Notes) -> None:
        self.name, self.strict, self._notes = name, strict, notes

    @property
    def is_tool(self) -> bool:
        """True for the parameters of a function."""
        return self.name.startswith("tools")

    def give_up(self, pointer: str, keyword: str, reason: str = "") -> None:
        """Give up a keyword at a JSON pointer."""
        where = f"{self.name}: #{pointer}/{escaped(keyword)}" if keyword else f"{self.name}: #{pointer}"
        why = f": {reason}" if reason else ""
        if self.strict:
            raise RequestError(f"{where} can't be enforced, as strict demands{why}")
        self._notes.add(f"{where} is not enforced{why}")

    def refuse(self, pointer: str, keyword: str, reason: str) -> RequestError:
        """Return the error of a keyword that means nothing, strict or not."""
        return RequestError(f"{self.name}: #{pointer}/{escaped(keyword)} {reason}")


def escaped(key: str) -> str:
    """Return a key as it stands in a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")
