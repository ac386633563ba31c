"""Strategies by name: what command lines and requests say."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from dflash.decode.drafters.adaptive.drafter import Adaptive
from dflash.decode.drafters.ddtree import BUDGET
from dflash.decode.drafters.dflash import DFlash
from dflash.decode.drafters.draft_model import DraftModel
from dflash.decode.drafters.first_of import FirstOf
from dflash.decode.drafters.mtp import MTP
from dflash.decode.drafters.prompt_lookup import PromptLookup
from dflash.decode.drafting.drafter import Drafter, Nothing
from dflash.decode.drafting.shapes import Chain, Shape, Tree
from dflash.decode.strategy import Strategy
from dflash.errors import RequestError

NAMES = (
    "plain, dflash[:DEPTH], dspark[:DEPTH], ddtree[:NODES], mtp[:DEPTH], mtp-tree[:NODES], lookup[:TOKENS], "
    "draft-model[:DEPTH], adaptive, adaptive(A, B, ...), first(A, B, ...)"
)
"""What there is."""

MAX_NAME = 200
"""Characters of a name."""

MAX_PARTS = 8
"""Names between one pair of brackets: each drafter keeps tables or a draft model's state for every sequence."""

MAX_NESTING = 2
"""Brackets within brackets: ``adaptive(first(lookup, mtp:2), dflash)`` has two."""

_WORD = re.compile(r"[a-z-]+")
_CALL = re.compile(r"([a-z-]+)(?::([1-9]\d{0,3}))?(?:\((.*)\))?")
_TAKES_DRAFT = re.compile(r"\b(dflash|dspark|ddtree|draft-model)\b")


def strategy(text: str, draft: str | None = None, **settings: Any) -> Strategy:
    """Make the strategy that a name stands for.

    Parameters
    ----------
    text : str
        One of `NAMES`, such as ``"dflash:8"`` or ``"first(lookup, ddtree:22)"``.
    draft : str, optional
        The draft model, for what needs one; where nothing does, ``mtp`` takes it for the file of its head.
    settings
        Of the draft: ``draft_device``, and what else `DFlash` takes; of an MTP head, ``draft_vocab``.

    Raises
    ------
    RequestError
        If there is no such strategy, or the name is longer, wider or deeper than `MAX_NAME`, `MAX_PARTS` and `MAX_NESTING`.
        The message lists what there is, or says how the one that was meant is written.
    """
    _check_size(text)
    return _Reader(text, draft, settings).strategy(text)


def name(strategy: Strategy) -> str:
    """Say by which name `strategy` makes this one, drafts apart; recoveries are not told. Its Python, if there is none."""
    drafter, shape = strategy.drafter, strategy.shape
    if isinstance(drafter, Adaptive):
        return f"adaptive({', '.join(map(name, drafter.strategies))})" if drafter.strategies else "adaptive"
    if isinstance(drafter, FirstOf):
        parts = [name(Strategy(part)) for part in drafter.drafters]
        if shape is not None:
            parts[-1] = name(Strategy(drafter.drafters[-1], shape))
        return f"first({', '.join(parts)})"
    found = next((word for kind, word in _WORDS.items() if type(drafter) is kind), None)
    if found is None or (isinstance(drafter, PromptLookup) and drafter != PromptLookup(n_draft=drafter.n_draft)):
        return repr(strategy)
    if isinstance(drafter, PromptLookup):
        return found if drafter == PromptLookup() else f"{found}:{drafter.n_draft}"
    if isinstance(shape, Tree) and found in _TREES and shape == Tree(shape.budget):
        return f"{_TREES[found]}:{shape.budget}"
    if isinstance(shape, Chain) and shape.depth is not None:
        return f"{found}:{shape.depth}"
    return found if shape in (None, Chain()) else repr(strategy)


def words_of(text: str) -> list[str]:
    """The words that a name is made of, such as ``first``, ``lookup``, ``dflash`` of ``"first(lookup, dflash:8)"``."""
    return _WORD.findall(text)


_WORDS: dict[type, str] = {
    Nothing: "plain",
    DFlash: "dflash",
    MTP: "mtp",
    PromptLookup: "lookup",
    DraftModel: "draft-model",
}
_TREES = {"dflash": "ddtree", "mtp": "mtp-tree"}


class _Kind(NamedTuple):
    """How a name that stands alone is read: who guesses, and the shape for a number, or without one."""

    drafter: Callable[[_Reader, int | None], Drafter]
    shape: Callable[[int | None], Shape | None]


class _Reader:
    def __init__(self, text: str, draft: str | None, settings: dict[str, Any]) -> None:
        self._text, self._draft, self._settings = text, draft, settings
        self._head = None if _TAKES_DRAFT.search(text) else draft

    def strategy(self, text: str) -> Strategy:
        found = _CALL.fullmatch(text.strip())
        if found is None:
            raise self._wrong(text)
        word, number, inner = found[1], int(found[2]) if found[2] else None, found[3]
        if word in ("first", "adaptive") and number is None and (inner is not None or word == "adaptive"):
            return self._several(word, inner)
        kind = _KINDS.get(word)
        if kind is None or inner is not None or (number is not None and "[:" not in _WRITTEN[word]):
            raise self._wrong(text)
        return Strategy(kind.drafter(self, number), kind.shape(number))

    def dflash(self) -> DFlash:
        return DFlash(**self._settings) if self._draft is None else DFlash(self._draft, **self._settings)

    def mtp(self) -> MTP:
        return MTP(self._head, self._settings.get("draft_vocab"))

    def draft_model(self) -> DraftModel:
        if self._draft is None:
            raise RequestError(f"strategy {self._text!r:.80}: draft-model needs a draft, the file of a small model")
        return DraftModel(self._draft, self._settings.get("draft_device"))

    def _several(self, word: str, inner: str | None) -> Strategy:
        if inner is None:
            return Strategy(Adaptive(self.dflash(), PromptLookup()) if self._draft or self._settings else Adaptive())
        made = list(dict.fromkeys(self.strategy(part) for part in parts(inner)))
        if len(made) > MAX_PARTS:
            raise RequestError(f"strategy {self._text!r:.80}: names {len(made)} strategies, at most {MAX_PARTS} are allowed")
        if word == "adaptive":
            return Strategy(Adaptive(*made))
        shapes = [part.shape for part in made if part.shape is not None]
        if len(set(shapes)) > 1:
            raise RequestError(f"strategy {self._text!r:.80}: first(...) guesses in one shape, got {shapes}")
        drafters = dict.fromkeys(part.drafter for part in made)
        return Strategy(FirstOf(*drafters), shapes[0] if shapes else None)

    def _wrong(self, text: str) -> RequestError:
        text = text.strip() or self._text
        word = _WORD.match(text)
        meant = _WRITTEN.get(word[0]) if word else None
        if meant is None:
            return RequestError(f"strategy: {text!r:.80} is not known; there are {NAMES}")
        _, colon, number = meant.rstrip("]").partition("[:")
        bounds = f", {number} from 1 to 9999" if colon else ""
        return RequestError(f"strategy: {text!r:.80} is not known; wanted {meant}{bounds}")


def _check_size(text: str) -> None:
    """Refuse a name that is too long or too deep, before it is read."""
    if len(text) > MAX_NAME:
        raise RequestError(f"strategy: the name has {len(text)} characters, at most {MAX_NAME} are allowed")
    depth = deepest = 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        deepest = max(deepest, depth)
    if deepest > MAX_NESTING:
        raise RequestError(f"strategy: {text!r:.80} is nested {deepest} levels deep, at most {MAX_NESTING} are allowed")


def parts(text: str) -> list[str]:
    """Names between commas that are not in brackets."""
    found, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    return found


def _chain(depth: int | None) -> Shape | None:
    return None if depth is None else Chain(depth)


def _tree(budget: int | None) -> Shape:
    return Tree(budget or BUDGET)


def _none(number: int | None) -> None:
    pass


_KINDS = {
    "plain": _Kind(lambda *_: Nothing(), _none),
    "dflash": _Kind(lambda reader, _: reader.dflash(), _chain),
    "dspark": _Kind(lambda reader, _: reader.dflash(), _chain),
    "ddtree": _Kind(lambda reader, _: reader.dflash(), _tree),
    "mtp": _Kind(lambda reader, _: reader.mtp(), _chain),
    "mtp-tree": _Kind(lambda reader, _: reader.mtp(), _tree),
    "lookup": _Kind(lambda _, most: PromptLookup() if most is None else PromptLookup(n_draft=most), _none),
    "draft-model": _Kind(lambda reader, _: reader.draft_model(), _chain),
}

WORDS = (*_KINDS, "adaptive", "first")
"""All words that names are made of."""

_WRITTEN = {word: " or ".join(one.strip() for one in parts(NAMES) if words_of(one)[0] == word) for word in WORDS}
