"""Guess that the text goes on as it did before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dflash.decode.drafting.draft import EMPTY, Draft
from dflash.decode.drafting.drafter import Drafter, Drafting, Rows
from dflash.decode.sampling.params import check_whole
from dflash.decode.settings import spelled
from dflash.errors import RequestError
from dflash.kernels.lookup import Index

if TYPE_CHECKING:
    from dflash.decode.session import Session
    from dflash.model.batch import Forward

_EXPECTED = 1024


@dataclass(frozen=True, repr=False)
class PromptLookup(Drafter):
    """Find the longest run of tokens that ends the text and occurred in it before, and guess what followed.

    Parameters
    ----------
    longest, shortest : int
        Lengths of the runs that are looked for; of equally long ones the most recent counts.
    most : int
        Tokens to guess; where what followed runs into the end of the text, it is taken to go on in circles. With the last
        token of the text, 7 make a forward of 8 rows, beyond which rows cost more.

    Raises
    ------
    RequestError
        If a setting makes no sense.

    References
    ----------
    Saxena 2023, Prompt Lookup Decoding; Yang et al. 2023, Inference with Reference, arXiv 2304.04487.
    """

    instant = True

    longest: int = 8
    shortest: int = 2
    most: int = 7
    __repr__ = spelled

    def __post_init__(self) -> None:
        for name in ("shortest", "longest", "most"):
            check_whole(f"{self!r}: {name}", getattr(self, name), 1)
        if self.longest < self.shortest:
            raise RequestError(f"{self!r}: longest must not be below shortest")

    def start(self, session: Session, model: Any, snapshot: Any = None) -> Drafting:  # noqa: ARG002
        """All that it must know is in the text of the session."""
        return _Lookup(self, session)


class _Lookup:
    capture: tuple[int, ...] = ()

    def __init__(self, drafter: PromptLookup, session: Session) -> None:
        self._session, self.shape = session, session.strategy.shape
        self._most = drafter.most
        self._index = Index(drafter.shortest, drafter.longest, session.n_prompt + _EXPECTED)
        # after a run of L tokens that went on alike, one in L + 1 is taken to be the first that does not
        self._scores = -np.log1p(1 / np.arange(1, drafter.longest + drafter.most, dtype=np.float32))

    def propose(self, room: int) -> Draft:
        self._read(len(self._session.text))
        length, follower = self._index.match()
        n = min(room, self._most, getattr(self.shape, "depth", None) or self._most)
        if not length or n < 1:
            return EMPTY
        return Draft(self._index.following(follower, n), scores=self._scores[length - 1 : length - 1 + n])

    def observe(self, out: Forward, rows: Rows) -> None:  # noqa: ARG002
        # a long prompt is entered chunk by chunk, as it is read
        self._read(self._session.n_read)

    def snapshot(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _read(self, n: int) -> None:
        have = len(self._index)
        if n > have:
            self._index.append(self._session.text[have:n])
