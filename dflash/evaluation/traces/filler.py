"""Filler text: token ids of an ordinary vocabulary, the same ones for the same name."""

import random
from collections.abc import Callable, Sequence

from dflash.evaluation.prompt_sets import BUNDLED, FOLDER


def ordinary_text() -> str:
    """Return code and prose, whose tokens are the vocabulary of filler text."""
    return "\n".join((FOLDER / f"{name}.jsonl").read_text("utf-8") for name in BUNDLED)


def vocabulary(encode: Callable[[str], Sequence[int]]) -> list[int]:
    """Return the token ids of ordinary text, each once, in rising order; no control token is among them.

    encode: ``encode(text)`` returns the ids of a text as a part of a longer one, without a token for the beginning.
    """
    return sorted(set(encode(ordinary_text())))


class Filler:
    """Makes token ids from names: equal names and seeds give equal ids, different ones give ids that share no beginning."""

    def __init__(self, vocabulary: Sequence[int], seed: int) -> None:
        self._vocabulary, self._seed = vocabulary, seed

    def tokens(self, name: str, n: int) -> list[int]:
        """Return `n` token ids; those of a smaller `n` are their beginning."""
        return random.Random(f"{self._seed} {name}").choices(self._vocabulary, k=n)
