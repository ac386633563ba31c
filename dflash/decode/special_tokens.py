"""What some ids mean to a model, for those who watch over a text without reading it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Ids with a meaning; whoever knows the tokenizer fills them in.

    Parameters
    ----------
    silent : frozenset of int
        Tokens that show a reader nothing: marks of reasoning, white space. End tokens need not be named.
    call : (int, int), optional
        What opens and closes a tool call.
    think : (int, int), optional
        What opens and closes reasoning.
    """

    silent: frozenset[int] = frozenset()
    call: tuple[int, int] | None = None
    think: tuple[int, int] | None = None
