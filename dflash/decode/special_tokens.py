"""Ids with a meaning, for recoveries, which see token ids but no text."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Ids with a meaning for the model. Code that has the tokenizer makes them.

    silent: tokens that a reader does not see: reasoning tags, white space, `control`. End tokens need not be included.
    control: control tokens that texts leave out, and that belong neither to reasoning nor to calls.
    call: tokens that open and close a tool call.
    think: tokens that open and close reasoning.
    """

    silent: frozenset[int] = frozenset()
    control: frozenset[int] = frozenset()
    call: tuple[int, int] | None = None
    think: tuple[int, int] | None = None
