"""Names of drafters: the table, the parser of strategy names, and, in `recoveries`, the names of recoveries.

Each class registers itself in its own file; this package imports none of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar

from dflash.decode.registry.word_table import WordTable
from dflash.errors import RequestError, did_you_mean

if TYPE_CHECKING:
    from dflash.decode.drafting.shapes import Shape

MAX_NAME = 200
"""Most characters of a name."""

MAX_PARTS = 8
"""Most names between one pair of brackets: each drafter keeps tables or a draft model's state for every sequence."""

MAX_NESTING = 2
"""Most brackets within brackets: ``adaptive(first(lookup, mtp:2), dflash)`` has two."""

_WORD = re.compile(r"[a-z][a-z0-9-]*")
_CALL = re.compile(r"([a-z][a-z0-9-]*)(?::([1-9]\d{0,3}))?(?:\((.*)\))?")
_WORD_AND_BRACKET = re.compile(r"([a-z][a-z0-9-]*)(\s*\()?")

T = TypeVar("T", bound=type)


class Named(NamedTuple):
    """Drafter and shape that a name stands for. The drafter is one of a registered class, none of which is known here."""

    drafter: Any
    shape: Shape | None = None


class DraftMethod(Protocol):
    """Drafter and shape of a strategy, as `name` reads them."""

    @property
    def drafter(self) -> Any:
        """The drafter, of a registered class or another. Read by `name`."""

    @property
    def shape(self) -> Shape | None:
        """Shape of the drafts; None if the drafter chooses. Read by `name`."""


class NameCall(NamedTuple):
    """One word of a name with everything given to it.

    text: the whole name that the user wrote, for messages.
    inner: strategies between the brackets without repetitions, None if there are no brackets.
    options: draft options (``draft``, ``draft_device``, ``draft_vocab``) that the word may use.
    """

    text: str
    number: int | None
    inner: tuple[Named, ...] | None
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RegisteredDrafter:
    """One registered word; `register` documents the fields."""

    word: str
    kind: type
    number: str | None = None
    parameter: str | None = None
    shape: Callable[[int], Shape] | None = None
    default: int | None = None
    takes: Mapping[str, str] = field(default_factory=dict)
    needs_draft: str | None = None
    spare_draft: bool = False
    brackets: Literal["never", "optional", "always"] = "never"
    make: Callable[[NameCall], Named] | None = None
    spell: Callable[[Any], str | None] | None = None
    about: str | None = None

    @property
    def forms(self) -> list[str]:
        """The ways to write the word, such as ``mtp[:DEPTH]``."""
        bare = [] if self.brackets == "always" else [f"{self.word}[:{self.number}]" if self.number else self.word]
        return bare if self.brackets == "never" else [*bare, f"{self.word}(A, B, ...)"]

    def accepts(self, call: NameCall) -> bool:
        """Return whether number and brackets are written as the word wants them."""
        if call.number is not None and self.number is None:
            return False
        return self.brackets != "always" if call.inner is None else self.brackets != "never"

    def made(self, call: NameCall) -> Named:
        """Return drafter and shape of a call that `accepts` allows."""
        if self.make is not None:
            return self.make(call)
        if self.needs_draft is not None and "draft" not in call.options:
            raise RequestError(f"strategy {call.text!r:.80}: {self.word} needs a draft, {self.needs_draft}")
        arguments = {name: call.options[option] for option, name in self.takes.items() if option in call.options}
        number = self.default if call.number is None else call.number
        if number is None:
            return Named(self.kind(**arguments))
        if self.parameter is not None:
            return Named(self.kind(**arguments, **{self.parameter: number}))
        assert self.shape is not None, "a word with a number makes a parameter or a shape"
        return Named(self.kind(**arguments), self.shape(number))

    def spelled(self, strategy: DraftMethod) -> str | None:
        """Return the name of a strategy whose drafter is of this kind, draft options left out; None if there is none."""
        drafter, shape = strategy.drafter, strategy.shape
        if self.spell is not None:
            return self.spell(strategy)
        if self.parameter is not None:
            number = getattr(drafter, self.parameter)
            if drafter != self.kind(**{self.parameter: number}):
                return None
            return self.word if drafter == self.kind() else f"{self.word}:{number}"
        if shape is None:
            return self.word if self.default is None else None
        if self.shape is None or type(shape) is not self.shape or not is_dataclass(shape):
            return None
        number = getattr(shape, fields(shape)[0].name)
        if shape != self.shape(number):
            return None
        return self.word if number is None else f"{self.word}:{number}"


DRAFTERS: WordTable[RegisteredDrafter] = WordTable()
"""Drafters by word."""


def register(word: str, *aliases: str, **settings: Any) -> Callable[[T], T]:
    """Give a drafter class a name on the command line, in requests and wherever a strategy may be a string.

    Parameters
    ----------
    word : str
        The name: a lower-case letter, then also digits and hyphens.
    *aliases : str
        Further names with the same meaning; `name` never returns them.
    number : str, optional
        Label of the number that may follow after a colon, such as ``"DEPTH"`` in ``mtp[:DEPTH]``. No number if None.
    parameter : str, optional
        Parameter of the class that the number sets. If None, the number makes the shape.
    shape : type, optional
        `Chain` or `Tree`: makes the shape from the number.
    default : int, optional
        The number if none is written. If None, class and shape keep their own defaults.
    takes : mapping of str to str
        Draft options that the drafter takes, each with the parameter of the class that it sets.
    needs_draft : str, optional
        Description of the file if the option ``draft`` is required, for the message.
    spare_draft : bool
        Take the option ``draft`` only if no other word of the name needs it.
    brackets : str
        ``"never"``, ``"optional"`` or ``"always"``: list of strategies after the word.
    make : callable, optional
        ``make(call: NameCall) -> Named``, instead of calling the class with `number` and `takes`.
    spell : callable, optional
        ``spell(strategy) -> str | None``, the reverse of `make`; None if no name means the strategy.
    about : str, optional
        One sentence for users, where several words share the class; its docstring's first sentence if None.

    Raises
    ------
    ValueError
        If a word has other characters or belongs to another class.

    Examples
    --------
    ::

        @register("suffix", number="TOKENS", parameter="n_draft")
        class Suffix(Drafter): ...
    """

    def add(kind: T) -> T:
        for each in (word, *aliases):
            DRAFTERS.add(RegisteredDrafter(each, kind, **settings))
        return kind

    return add


def words() -> tuple[str, ...]:
    """Return all words that names are made of."""
    return tuple(DRAFTERS)


def names() -> str:
    """List the forms of all names, for help and messages."""
    return ", ".join(form for entry in DRAFTERS.values() for form in entry.forms)


def parse(text: str, draft: str | None = None, **options: Any) -> Named:
    """Make the drafter and shape that a name stands for.

    text: a name such as ``"dflash:8"`` or ``"first(lookup, ddtree:22)"``; `names` lists the forms.
    draft: the draft model. ``mtp`` takes it as the file of its head if no other word of the name needs it.
    **options: further draft options, ``draft_device`` and ``draft_vocab``. Words that do not take an option ignore it.
    """
    _check_size(text)
    options = options if draft is None else {"draft": draft, **options}
    needed = {word for word in _words_that_take("draft") if not DRAFTERS[word].spare_draft}
    taken = needed.intersection(words_of(text))
    spare = {option: value for option, value in options.items() if option != "draft" or not taken}
    return _parsed(text, text, options, spare)


def name(strategy: DraftMethod) -> str:
    """Return the name that `parse` would read as this strategy, without draft options and recoveries; else its repr."""
    kind = type(strategy.drafter)
    found = (entry.spelled(strategy) for entry in DRAFTERS.values() if entry.kind is kind)
    return next((text for text in found if text is not None), None) or repr(strategy)


def words_of(text: str) -> list[str]:
    """Return the words of a name, such as ``first``, ``lookup``, ``dflash`` of ``"first(lookup, dflash:8)"``."""
    return _WORD.findall(text)


def parts(text: str) -> list[str]:
    """Split names at the commas that are outside brackets."""
    found, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    return found


def check_draft_options(names: Sequence[str], spell: Callable[[str, Any], str] = "{}={!r}".format, **options: Any) -> None:
    """Check that each draft option is taken by at least one of the named strategies.

    **options: ``draft``, ``draft_device`` and ``draft_vocab``; None if not given.
    """
    entries = [entry for text in names for entry in _option_takers(text)]
    for option, value in options.items():
        if value is None or any(option in entry.takes for entry in entries):
            continue
        of = f"strategy {', '.join(map(repr, names))} does not take it" if names else "no strategy is named"
        raise RequestError(f"{spell(option, value)}: {of}; those that do are {', '.join(_words_that_take(option))}")


def check_no_draft_options(arguments: Iterable[str]) -> None:
    """Raise a RequestError if an argument is a draft option, where a strategy already holds its own."""
    for argument in arguments:
        if _words_that_take(argument):
            raise RequestError(f"{argument}: belongs to the strategy, as strategy=DFlash('draft.gguf', draft_vocab=32768)")


def _option_takers(text: str) -> Iterator[RegisteredDrafter]:
    """Yield the entries of a name that use draft options themselves: a word before brackets leaves them to its parts."""
    for word, bracket in _WORD_AND_BRACKET.findall(text):
        if not bracket and word in DRAFTERS:
            yield DRAFTERS[word]


def _words_that_take(option: str) -> list[str]:
    found = [entry for entry in DRAFTERS.values() if option in entry.takes and entry.brackets == "never"]
    return [entry.word for entry in sorted(found, key=lambda entry: entry.spare_draft)]


def _parsed(part: str, whole: str, options: dict[str, Any], spare: dict[str, Any]) -> Named:
    """Parse a part of a name; words with `spare_draft` get the options `spare`."""
    found = _CALL.fullmatch(part.strip())
    if found is None or found[1] not in DRAFTERS:
        raise _unknown(part.strip() or whole)
    entry, inner = DRAFTERS[found[1]], None if found[3] is None else ()
    call = NameCall(whole, int(found[2]) if found[2] else None, inner, spare if entry.spare_draft else options)
    if not entry.accepts(call):
        raise _unknown(part.strip())
    if inner is None:
        return entry.made(call)
    made = tuple(dict.fromkeys(_parsed(each, whole, options, spare) for each in parts(found[3])))
    if len(made) > MAX_PARTS:
        raise RequestError(f"strategy {whole!r:.80}: names {len(made)} strategies, at most {MAX_PARTS} are allowed")
    return entry.made(call._replace(inner=made))


def _unknown(text: str) -> RequestError:
    word = _WORD.match(text)
    entry = DRAFTERS.get(word[0]) if word else None
    if entry is None:
        near = did_you_mean(word[0] if word else "", DRAFTERS)
        return RequestError(f"strategy: {text!r:.80} is not known; there are {names()}{near}")
    bounds = f", {entry.number} from 1 to 9999" if entry.number else ""
    return RequestError(f"strategy: {text!r:.80} is not known; wanted {' or '.join(entry.forms)}{bounds}")


def _check_size(text: str) -> None:
    """Raise a RequestError for a name that is too long or nested too deeply, before it is parsed."""
    if len(text) > MAX_NAME:
        raise RequestError(f"strategy: the name has {len(text)} characters, at most {MAX_NAME} are allowed")
    deepest = max(accumulate((letter == "(") - (letter == ")") for letter in text), default=0)
    if deepest > MAX_NESTING:
        raise RequestError(f"strategy: {text!r:.80} is nested {deepest} levels deep, at most {MAX_NESTING} are allowed")
