"""Tables of classes by name, filled by decorators in the files of the classes."""

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from threading import RLock
from typing import Protocol, TypeVar

log = logging.getLogger(__name__)

_WORD = re.compile(r"[a-z][a-z0-9-]*")


class Registered(Protocol):
    """One word of a table."""

    @property
    def word(self) -> str:
        """The name."""

    @property
    def kind(self) -> type:
        """The class that has the name."""

    @property
    def forms(self) -> list[str]:
        """The ways to write the word, such as ``mtp[:DEPTH]``."""


E = TypeVar("E", bound=Registered)


class WordTable(Mapping[str, E]):
    """Registered classes by word, in the order of registration.

    Packages whose files register classes give a loader to `source`. All loaders run before the first look-up, so that a new
    file in such a package needs no import elsewhere.
    """

    def __init__(self) -> None:
        self._entries: dict[str, E] = {}
        self._sources: list[Callable[[], None]] = []
        self._loading = RLock()

    def source(self, load: Callable[[], None]) -> Callable[[], None]:
        """Run `load`, which imports all modules of a package, before the next look-up. A decorator."""
        self._sources.append(load)
        return load

    def add(self, entry: E) -> None:
        """Add a class. It may be defined again, as in a notebook's cell."""
        word, kind, known = entry.word, entry.kind, self._entries.get(entry.word)
        if _WORD.fullmatch(word) is None:
            raise ValueError(f"register: {word!r} must consist of lower-case letters, digits and hyphens")
        if known is not None and (known.kind.__module__, known.kind.__name__) != (kind.__module__, kind.__name__):
            raise ValueError(f"register: {word!r} is the name of {known.kind.__name__}; choose another")
        self._entries[word] = entry

    def __getitem__(self, word: str) -> E:
        return self._loaded()[word]

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._loaded()))

    def __len__(self) -> int:
        return len(self._loaded())

    def _loaded(self) -> dict[str, E]:
        with self._loading:
            while self._sources:
                self._sources.pop(0)()
        return self._entries


def load_entry_points(group: str) -> None:
    """Import all that installed distributions offer as a group, such as ``dflash.drafters``. Failures are logged."""
    from importlib.metadata import entry_points  # takes 20 ms, which help texts do not need

    for point in entry_points(group=group):
        try:
            point.load()
        except Exception as error:
            log.warning("the entry point %s of %s can't be imported: %s", point.name, group, error)
