"""The protocols of a grammar and of a position in it, over token ids."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
"""Bit-packed set of tokens (ceil(V / 32),): bit ``i % 32`` of word ``i // 32`` belongs to token i."""


class Matcher(Protocol):
    """A position in a grammar after some tokens. A pure function of these tokens, whatever was rolled back meanwhile.

    The methods are called in one thread at a time: by the session that owns the matcher, in the engine's thread.
    """

    @property
    def free(self) -> bool:
        """True if every token may follow, so that no mask is needed."""

    @property
    def binds(self) -> bool:
        """False in free output before or between grammars, where no more than some special tokens are excluded."""

    @property
    def is_accepting(self) -> bool:
        """True if the output may end here: then end tokens are legal."""

    @property
    def is_complete(self) -> bool:
        """True if the output may end here and only end tokens are legal."""

    @property
    def mask_seconds(self) -> float:
        """CPU seconds of a mask, lately; 0 if that is not known."""

    def mask(self) -> Words:
        """Return the tokens that may follow; the caller does not change the array. Called only where it is not `free`.

        Raises DFlashError if the grammar can't be followed further: no text leads on, or a limit on its work is reached.
        """

    def advance(self, token: int) -> bool:
        """Move past a token. Return False, and stay, if the token is not legal.

        Raises DFlashError as for `mask`.
        """

    def rollback(self, n: int) -> None:
        """Undo the last `n` tokens, at most as many as were passed."""

    def forced(self) -> Sequence[int]:
        """Return the next tokens, as far as only one continuation is legal; often none."""


class Grammar(Protocol):
    """A set of outputs. Holds no request, and may serve several at a time."""

    @property
    def mask_load(self) -> float:
        """Part of the CPU time for slow masks of all requests that is spent; none may start at 1, beside others."""

    def start(self) -> Matcher:
        """Return the position before the first token. Called from any thread."""
