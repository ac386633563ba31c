"""Let a small model of the same vocabulary guess."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dflash.decode.drafters.diagnostics import Health
from dflash.decode.drafters.loading import LoadingDrafter
from dflash.decode.drafting.draft import EMPTY, Draft
from dflash.decode.drafting.drafter import Drafting, Rows
from dflash.decode.drafting.shapes import Chain
from dflash.decode.engine import Engine
from dflash.decode.settings import spelled
from dflash.decode.warmup import warm
from dflash.kernels.ragged import PENDING
from dflash.model.batch import Span
from dflash.model.candidates import Candidates, fill, put
from dflash.model.load_small import load_small

if TYPE_CHECKING:
    from dflash.decode.session import Session
    from dflash.model.batch import Forward
    from dflash.model.state.sequence_state import Snapshot

DEPTH = 4
"""Tokens to guess where the shape leaves that open."""


@dataclass(frozen=True, repr=False)
class DraftModel(LoadingDrafter):
    """Let a small model write ahead; under a tree its first choices are followed.

    Parameters
    ----------
    model : str
        A GGUF file of the same tokenizer: a name as for `dflash.load`.
    draft_device : str, optional
        Where it runs, ``"cpu"`` or ``"cuda"``; beside the model that it guesses for if None.
    """

    model: str
    draft_device: str | None = None
    __repr__ = spelled

    @property
    def source(self) -> str:
        """Name of the small model."""
        return self.model

    def load(self, model: Any) -> Any:
        """Load the small model."""
        return load_small(model, self.model, self.draft_device)

    def compile(self, companion: Any) -> None:
        """Write a few tokens with a small model on the CPU."""
        if companion.model.device == "cpu":
            warm(Engine(companion.model), companion.kind, lambda _: None)

    def start(self, session: Session, model: Any, snapshot: Snapshot | None = None) -> Drafting:
        """Hold all the memory that the session may need."""
        self.prepare(model)
        health = Health(session, model, repr(self))
        return _Writing(model.companions[self].model, model.n_vocab, session, health, snapshot)

    def propose(self, draftings: Sequence[_Writing], rooms: Sequence[int]) -> list[Draft]:
        """A forward over what is new of all sessions, and one for each token but the first."""
        return _propose(draftings, rooms)


class _Writing:
    """A text as the small model knows it.

    What it guessed stays pending until the next time: what turned out right is kept then. A recurrent state can't be cut
    back, so each further guess reads the guesses before it again, which costs little beside the weights.
    """

    capture: tuple[int, ...] = ()

    def __init__(self, small: Any, n_vocab: int, session: Session, health: Health, snapshot: Snapshot | None) -> None:
        self.small, self.n_vocab, self.session, self.health = small, n_vocab, session, health
        self.shape = session.strategy.shape or Chain()
        self.guesses: list[int] = []
        self.state = small.state()
        try:
            if snapshot is not None:
                self.state.restore(snapshot)
            self.state.reserve(min(session.limit, small.config.context) - self.state.length)
        except BaseException:
            self.state.close()
            raise

    def wants(self, room: int) -> tuple[int, int]:
        """How many tokens to guess, and candidates for each."""
        room = min(room, self.small.config.context - len(self.session.text))
        return self.shape.wants(self.shape.depth or DEPTH, room)

    def propose(self, room: int) -> Draft:
        return _propose([self], [room])[0]

    def observe(self, out: Forward, rows: Rows) -> None:  # noqa: ARG002
        session = self.session
        if not isinstance(rows, slice):
            self.health.kept(len(rows) - 1)
        text = session.n_read if session.n_read < session.n_prompt - 1 else len(session.text) - 1
        if text - self.state.length > PENDING:
            self.settle()
            self.read(text)

    def answer(self, candidates: Candidates, room: int) -> Draft:
        """Make a draft of what the small model says."""
        draft = self.shape.draft(candidates, room)
        self.health.guessed(len(draft))
        return draft

    def settle(self) -> None:
        """Keep those of the guesses that have become text; the last token of the text is left to be read."""
        length, new = self.state.length, self.session.text[self.state.length : -1]
        right = 0
        while right < min(len(new), len(self.guesses)) and new[right] == self.guesses[right]:
            right += 1
        if self.guesses:
            self.state.commit(range(right))
        self.guesses = []
        assert self.state.length == length + right

    def read(self, stop: int) -> None:
        """Read the text up to a length, as far as the context of the small model goes."""
        stop = min(stop, self.small.config.context)
        while self.state.length < stop:
            start = self.state.length
            tokens = self.session.text[start : min(start + self.small.chunk, stop)]
            self.small.forward([Span(self.state, np.array(tokens, np.int32), _chain(len(tokens)), whole=True, logits=False)])

    def fresh(self) -> Span:
        """All of the text that was not read yet, at least its last token, and no more than can be pending."""
        self.settle()
        if len(self.session.text) - self.state.length > PENDING:
            self.read(len(self.session.text) - 1)
        tokens = np.array(self.session.text[self.state.length :], np.int32)
        return Span(self.state, tokens, _chain(len(tokens)))

    def snapshot(self) -> Snapshot:
        self.settle()
        return self.state.snapshot()

    def close(self) -> None:
        self.state.close()


def _propose(draftings: Sequence[_Writing], rooms: Sequence[int]) -> list[Draft]:
    wants = [drafting.wants(room) for drafting, room in zip(draftings, rooms, strict=True)]
    going = [i for i, (n, _) in enumerate(wants) if n > 0]
    found = {i: Candidates.nothing(*wants[i]) for i in going}
    spans = {i: draftings[i].fresh() for i in going}
    depth = 0
    while going:
        _fill([found[i] for i in going], [draftings[i] for i in going], [spans[i] for i in going], depth)
        if depth == 0:
            for i in going:
                draftings[i].state.commit(range(len(spans[i].tokens)))
        depth += 1
        going = [i for i in going if wants[i][0] > depth and found[i].ids[depth - 1, 0] >= 0]
        for i in going:
            guesses = found[i].ids[:depth, 0].copy()
            spans[i] = Span(draftings[i].state, guesses, _chain(depth))
            draftings[i].guesses = guesses.tolist()
    return [drafting.answer(found[i], rooms[i]) if i in found else EMPTY for i, drafting in enumerate(draftings)]


def _fill(found: list[Candidates], draftings: list[_Writing], spans: list[Span], depth: int) -> None:
    """Find candidates of one more position of some texts."""
    out = draftings[0].small.forward(spans)
    last = np.cumsum([len(span.tokens) for span in spans]) - 1
    sessions = [drafting.session for drafting in draftings]
    if not isinstance(out.logits, np.ndarray) and out.logits.shape[1] == draftings[0].n_vocab:
        width, laws = max(each.ids.shape[1] for each in found), [session.picker.law for session in sessions]
        places = [len(session.text) + depth for session in sessions]
        put(found, depth, *out.logits.candidates(last.tolist(), laws, places, width))
        return
    logits = np.ascontiguousarray(np.asarray(out.logits)[last, : draftings[0].n_vocab])
    fill(found, depth, logits, [session.picker.law for session in sessions], [len(session.text) for session in sessions])


def _chain(n: int) -> np.ndarray:
    return np.arange(-1, n - 1, dtype=np.int32)
