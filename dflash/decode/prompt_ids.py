"""Token ids of a prompt, checked and converted once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash.errors import RequestError

_INT32_MAX = 2**31 - 1


class PromptIds:
    """Ids of a prompt that several sessions may continue. The sessions share the array and the ints of the list.

    token_ids: the same ids; must not be changed.
    """

    __slots__ = ("array", "token_ids")

    def __init__(self, prompt: Sequence[int] | NDArray[np.int32]) -> None:
        self.array = _checked(prompt)
        self.array.flags.writeable = False
        self.token_ids: list[int] = self.array.tolist()

    @classmethod
    def of(cls, prompt: PromptIds | Sequence[int]) -> PromptIds:
        """Return `prompt` itself if it was converted before."""
        return prompt if isinstance(prompt, PromptIds) else cls(prompt)

    def __len__(self) -> int:
        return len(self.token_ids)


def _checked(prompt: Any) -> NDArray[np.int32]:
    try:
        ids = np.asarray(prompt)
    except ValueError:
        raise RequestError("prompt: must be one sequence of token ids, got nested ones") from None
    if not ids.size:
        raise RequestError("prompt: must hold at least one token")
    if ids.ndim != 1:
        raise RequestError(f"prompt: must be one sequence of token ids, got shape {ids.shape}")
    if ids.dtype.kind not in "iu":
        raise RequestError(f"prompt: must hold token ids, got {ids.dtype}")
    if ids.min() < 0 or ids.max() > _INT32_MAX:
        bad = int(np.flatnonzero((ids < 0) | (ids > _INT32_MAX))[0])
        raise RequestError(f"prompt: token {ids[bad]} at {bad} is not in the vocabulary")
    return ids.astype(np.int32)
