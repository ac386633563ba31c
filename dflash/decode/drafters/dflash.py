"""Guess a block of tokens at once with a small model that sees what the target's layers saw."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dflash.decode.drafters.diagnostics import Health
from dflash.decode.drafters.loading import LoadingDrafter
from dflash.decode.drafters.vocab_tracker import Usual
from dflash.decode.drafting.device_draft import DeferredDraft, may_wait
from dflash.decode.drafting.draft import EMPTY, Draft
from dflash.decode.drafting.drafter import Drafting, Follow, Foreseen, Rows
from dflash.decode.drafting.shapes import Chain
from dflash.decode.settings import spelled
from dflash.kernels.ragged import PENDING
from dflash.model.draft import Ask, Wish, load_draft

if TYPE_CHECKING:
    from dflash.decode.drafting.shapes import Shape
    from dflash.decode.session import Session
    from dflash.model.batch import Forward
    from dflash.model.candidates import Candidates

Features = dict[int, NDArray[np.float32]]

DEPTH = 7
"""Guesses of a chain on a CPU where the shape leaves that open: with the last token 8 rows, beyond which rows cost more."""


@dataclass(frozen=True, repr=False)
class DFlash(LoadingDrafter):
    """Guess with a DFlash, DFlash 2 or DSpark draft model.

    Parameters
    ----------
    draft : str or path
        A GGUF file or a folder as published; ``demo-draft``, which comes with dflash; or ``hf:org/repo`` of the Hugging Face
        hub. It must have been made for the target.
    draft_device : str, optional
        Where the draft runs, ``"cpu"`` or ``"cuda"``; beside the target if None.
    context : int, optional
        Most positions of a text that the draft looks back to in layers without a window.
    short : bool
        On a CPU, make blocks no longer than what is wanted: drafts were trained with whole ones, but each row costs time,
        and with 7 guesses the demo's loses 1 % of the tokens a step on code and 3 % in chats.
    confidence : float
        A DSpark draft guesses no further than it trusts itself with this probability. On a GPU that spares no row: a step
        is launched before it is known.
    draft_vocab : int, optional
        Guess from the first so many tokens of the vocabulary, and the special ones at its end, alone: merges are numbered
        in the order of how often they come, but one language after another. The head is then no more than the rows of
        these; the whole size is always all. If None all; on a GPU, of 100,000 and more, two or three fifths while a text
        keeps to these, as English, code and Chinese do.

    References
    ----------
    DFlash, arXiv 2602.06036. Fewer tokens: FR-Spec, arXiv 2502.14856; EAGLE-3, arXiv 2503.01840.
    """

    draft: str = "demo-draft"
    draft_device: str | None = None
    context: int | None = None
    short: bool = True
    confidence: float = 0.0
    draft_vocab: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "draft", os.fspath(self.draft))

    __repr__ = spelled

    @property
    def source(self) -> str:
        """Name of the draft."""
        return self.draft

    def load(self, model: Any) -> Any:
        """Load the draft."""
        settings = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("draft", "draft_device")}
        return load_draft(self.draft, model, device=self.draft_device, sequences=model.pools.slots, **settings)

    def warm(self, companion: Any) -> Iterable[None]:
        """Capture the passes of a draft on a GPU."""
        return companion.warm() if companion.device == "cuda" else ()

    def start(self, session: Session, model: Any, snapshot: Any = None) -> Drafting:
        """Take a place for the session's context."""
        self.prepare(model)
        return _Guessing(model.companions[self], session, Health(session, model, repr(self)), snapshot)

    def propose(self, draftings: Sequence[_Guessing], rooms: Sequence[int]) -> list[Draft]:
        """Run the draft once for all sessions."""
        return _propose(draftings, rooms)

    def foresee(self, draftings: Sequence[_Guessing], drafts: Sequence[Draft]) -> list[Foreseen]:  # noqa: ARG002
        """On a GPU it goes on."""
        return [drafting.foresee() for drafting in draftings]


def DSpark(draft: str, **settings: Any) -> DFlash:  # noqa: N802
    """Guess with a DSpark draft model: `DFlash` runs those, too."""
    return DFlash(draft, **settings)


class _Guessing:
    """A draft's context of one session.

    What the target saw is read when guesses are wanted, of all sessions together; on a GPU at once, where it lies.

    Attributes
    ----------
    draft : BlockDraft
    shape : Shape
        How candidates become guesses.
    unread : list of dict of int to float32 (n, H)
        Features of rows that come next, of a few tokens at most.
    """

    def __init__(self, draft: Any, session: Session, health: Health, snapshot: Any) -> None:
        self.draft, self.capture, self.session = draft, draft.config.taps, session
        self.shape: Shape = session.strategy.shape or Chain()
        self.unread: list[Features] = []
        self._health, self._seen, self._n_unread = health, session.n_read, 0
        self._usual = Usual(draft.common, draft.config.n_vocab, session.guessed_from)
        # of a long prompt, the first positions would be forgotten before anything is guessed
        first = session.n_prompt - 1 - draft.reach
        known = snapshot is not None and first <= session.n_read
        self.state = draft.state(0 if known else max(first, session.n_read))
        if known:
            self.state.restore(snapshot)

    def ask(self, room: int) -> Ask | None:
        """What to ask the draft for; None if nothing is wanted."""
        most = self.draft.config.most
        if self.draft.device == "cpu" and self.shape == Chain():
            most = min(most, DEPTH)
        n, width = self.shape.wants(most, room)
        if n < 1:
            return None
        text = self.session.text
        return Ask(self.state, text[-1], n, self.session.picker.law, width, self._usual.does(text))

    def wish(self) -> tuple[Wish, int]:
        """What to ask a draft on a GPU for, and how many of the guesses to take: the first ones of a tree are one, too.

        A chain is asked for as far as the block goes, which costs nothing, so that any other will do next time.
        """
        most, law = self.draft.config.most, self.session.picker.law
        n, width = self.shape.wants(most, PENDING - 1)
        common = self._usual.does(self.session.text)
        if width == 1:
            return Wish(self.state, law, most, 1, most, common), n
        nodes = min(self.shape.budget, PENDING - 1)
        return Wish(self.state, law, n, width, nodes, common), nodes

    def foresee(self) -> Foreseen:
        """What a draft on a GPU can begin."""
        return None if self.draft.device == "cpu" else Follow(self.draft, self.wish()[0])

    def shaped(self, candidates: Candidates, room: int) -> Draft:
        """Guesses, made of what the draft has found."""
        draft = self.shape.draft(candidates, room)
        self.guessed(len(draft))
        return draft

    def guessed(self, n: int) -> None:
        """So many guesses are made."""
        self._health.guessed(n)
        self._usual.count()

    def propose(self, room: int) -> Draft:
        return _propose([self], [room])[0]

    def observe(self, out: Forward, rows: Rows) -> None:
        n = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        skipped = min(max(self.state.length + self._n_unread - self._seen, 0), n)
        self._seen += n
        if skipped < n:
            self._see(
                out, slice(rows.start + skipped, rows.stop) if isinstance(rows, slice) else rows[skipped:], n - skipped
            )
        self._health.kept(n - 1)

    def _see(self, out: Forward, rows: Rows, n: int) -> None:
        there = isinstance(out.hidden, np.ndarray)
        if there and self._n_unread + n <= PENDING:
            self.unread.append({layer: out.captured[layer][rows].copy() for layer in self.capture})
            self._n_unread += n
        else:
            read([self])
            self.draft.read(self.state, out.captured, rows)

    def taken(self) -> Features:
        """All that is unread, which counts as read from here on."""
        features = {layer: np.concatenate([part[layer] for part in self.unread]) for layer in self.capture}
        self.unread, self._n_unread = [], 0
        return features

    def snapshot(self) -> Any:
        read([self])
        return self.state.snapshot() if self.state.length == self._seen else None

    def close(self) -> None:
        self.state.close()


def read(draftings: Sequence[_Guessing]) -> None:
    """Read what is unread of some sessions."""
    behind = [drafting for drafting in draftings if drafting.unread]
    if not behind:
        return
    parts = [drafting.taken() for drafting in behind]
    layers = behind[0].capture
    ends = list(accumulate(len(part[layers[0]]) for part in parts))
    items = [(drafting.state, slice(*ends)) for drafting, ends in zip(behind, pairwise([0, *ends]), strict=True)]
    behind[0].draft.read_many(items, {layer: np.concatenate([part[layer] for part in parts]) for layer in layers})


def _propose(draftings: Sequence[_Guessing], rooms: Sequence[int]) -> list[Draft]:
    deferred = _deferred(draftings, rooms)
    if deferred is not None:
        return deferred
    asks = [drafting.ask(room) for drafting, room in zip(draftings, rooms, strict=True)]
    wanted = [ask for ask in asks if ask is not None]
    if not wanted:
        return [EMPTY] * len(asks)
    read([drafting for drafting, ask in zip(draftings, asks, strict=True) if ask is not None])
    found = iter(draftings[0].draft.propose(wanted))
    return [
        EMPTY if ask is None else drafting.shaped(next(found), room)
        for drafting, ask, room in zip(draftings, asks, rooms, strict=True)
    ]


def _deferred(draftings: Sequence[_Guessing], rooms: Sequence[int]) -> list[Draft] | None:
    """Drafts that a GPU is still making, where it can and nobody must see them before they are verified."""
    draft = draftings[0].draft
    if draft.device == "cpu" or min(rooms) < 1 or not all(may_wait(drafting.session) for drafting in draftings):
        return None
    wishes = [drafting.wish() for drafting in draftings]
    guesses = draft.guess([wish for wish, _ in wishes], [drafting.session.text[-1] for drafting in draftings])
    if guesses is None:
        return None
    drafts = [
        DeferredDraft(guesses, i, min(n, room), chain=wish.nodes <= wish.positions)
        for i, ((wish, n), room) in enumerate(zip(wishes, rooms, strict=True))
    ]
    for drafting, made in zip(draftings, drafts, strict=True):
        drafting.guessed(len(made))
    return list(drafts)
