"""Which strategies, by name, take what is said about a draft model."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dflash.decode.registry import words_of
from dflash.errors import RequestError

_BLOCK_DRAFTS = "dflash", "dspark", "ddtree"
_HEADS = "mtp", "mtp-tree"
_TAKERS = {
    "draft": (*_BLOCK_DRAFTS, "draft-model", *_HEADS),
    "draft_device": (*_BLOCK_DRAFTS, "draft-model"),
    "draft_vocab": (*_BLOCK_DRAFTS, *_HEADS),
}
_CHOOSES_ITSELF = re.compile(r"\badaptive\b(?!\s*\()")


def check_taken(names: Sequence[str], said: Callable[[str, Any], str] = "{}={!r}".format, **told: Any) -> None:
    """Refuse what is told of a draft model that none of some strategies guesses with.

    Parameters
    ----------
    names : sequence of str
        Of the strategies.
    said : callable
        How an argument and its value are spelled where they come from.
    **told
        ``draft``, ``draft_device`` and ``draft_vocab``; None if untold.

    Raises
    ------
    RequestError
        If there is such an argument; the message says which strategies take it.
    """
    words = {word for name in names for word in words_of(_CHOOSES_ITSELF.sub("dflash", name))}
    for argument, value in told.items():
        takers = _TAKERS[argument]
        if value is not None and not words.intersection(takers):
            of = f"strategy {', '.join(map(repr, names))} does not take it" if names else "no strategy is named"
            raise RequestError(f"{said(argument, value)}: {of}; those that do are {', '.join(takers)}")


def check_untold(arguments: Iterable[str]) -> None:
    """Raise a RequestError if one of some arguments is about a draft, where the strategy alone says that."""
    for argument in arguments:
        if argument in _TAKERS:
            raise RequestError(f"{argument}: belongs to the strategy, as strategy=DFlash('draft.gguf', draft_vocab=32768)")
